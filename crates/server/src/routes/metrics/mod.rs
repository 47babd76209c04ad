//! `GET /metrics`: the counters, in the format that the `Accept` header asks for.

use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, header};

use crate::access::Caller;
use crate::metrics::Format;
use crate::state::AppState;

/// Answers without asking the engine to stop for it: with everything, or with the series of the
/// caller's own tenant.
pub(crate) async fn handle(
    State(state): State<AppState>,
    caller: Caller,
    headers: HeaderMap,
) -> ([(HeaderName, &'static str); 1], String) {
    let only = (!caller.sees_all()).then_some(caller.tenant);
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    let format = Format::accepted(accept.unwrap_or_default());
    ([(header::CONTENT_TYPE, format.content_type())], state.metrics().text(only, format))
}
