//! `GET /metrics`: the counters, in the OpenMetrics text format, which Prometheus reads.

use axum::extract::State;
use axum::http::{HeaderName, header};

use crate::state::AppState;

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Answers without asking the engine to stop for it.
pub(crate) async fn handle(
    State(state): State<AppState>,
) -> ([(HeaderName, &'static str); 1], String) {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], state.metrics().text())
}
