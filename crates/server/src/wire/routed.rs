//! The header that names the rule which chose the model of an answer.

use std::sync::{Arc, OnceLock};

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;

use crate::models::Chosen;

const NAME: HeaderName = HeaderName::from_static("x-pelton-routed");

/// Where the rule for a request is noted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Routed(Arc<OnceLock<HeaderValue>>);

impl Routed {
    /// Notes the rule.
    pub(crate) fn note(&self, chosen: &Chosen) {
        let Chosen { from, to, rule } = chosen;
        let is_fine = |letter: &char| letter.is_ascii_graphic();
        let text = |name: &str| -> String {
            name.chars().map(|letter| if is_fine(&letter) { letter } else { '?' }).collect()
        };
        let value = format!("{} to {} by {rule}", text(from), text(to));
        if let Ok(value) = HeaderValue::from_str(&value) {
            let _ = self.0.set(value);
        }
    }
}

/// Names the rule in the header of the answer.
pub(crate) async fn layer(mut request: Request, next: Next) -> Response {
    let routed = Routed::default();
    request.extensions_mut().insert(routed.clone());
    let mut response = next.run(request).await;
    if let Some(value) = routed.0.get() {
        response.headers_mut().insert(NAME, value.clone());
    }
    response
}
