//! `GET /metrics`: the counters, in the OpenMetrics text format, which Prometheus reads.

use axum::extract::State;
use axum::http::{HeaderName, header};

use crate::access::Caller;
use crate::state::AppState;

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Answers without asking the engine to stop for it: with everything, or with the series of the
/// caller's own tenant.
pub(crate) async fn handle(
    State(state): State<AppState>,
    caller: Caller,
) -> ([(HeaderName, &'static str); 1], String) {
    let only = (!caller.sees_all).then_some(caller.tenant);
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], state.metrics().text(only))
}
