//! `X-Request-Id`: taken from the client or made up, logged, and sent back.

use std::sync::Arc;

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use tracing::Instrument;

use crate::access_log::Line;
use crate::otlp::Traced;

const NAME: HeaderName = HeaderName::from_static("x-request-id");
/// Longest name that a client may give its request, in bytes.
const MOST_BYTES: usize = 128;

/// Names the request, opens its span, and puts the name on the answer.
pub(crate) async fn layer(mut request: Request, next: Next) -> Response {
    let given = request.headers().get(NAME).filter(|value| is_decent(value)).cloned();
    let id = given.unwrap_or_else(|| {
        let fresh = crate::wire::fresh_id("req-");
        HeaderValue::from_str(&fresh).expect("invariant: fresh ids are plain ASCII")
    });
    request.headers_mut().insert(NAME, id.clone());
    let span = tracing::info_span!("request", id = %id.to_str().unwrap_or_default());
    let traced = Traced::of(request.headers());
    request.extensions_mut().insert(traced);
    let line = Line::new(&request, &span, traced);
    if let Some(line) = &line {
        request.extensions_mut().insert(Arc::clone(line));
    }
    let mut response = next.run(request).instrument(span).await;
    response.headers_mut().insert(NAME, id);
    if let Some(line) = line {
        line.follow(&mut response);
    }
    response
}

/// The name of a request, once it has passed the layer.
pub(crate) fn of(headers: &HeaderMap) -> &str {
    headers.get(NAME).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

fn is_decent(value: &HeaderValue) -> bool {
    !value.is_empty()
        && value.len() <= MOST_BYTES
        && value.as_bytes().iter().all(|b| b.is_ascii_graphic())
}
