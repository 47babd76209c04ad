//! `GET /health`: 200 while requests are accepted, 503 while the server drains.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use crate::state::AppState;

/// The state of the server.
#[derive(serde::Serialize)]
pub(crate) struct Health {
    status: &'static str,
    /// Requests that hold memory for their keys and values.
    running: usize,
    /// Requests that wait for it.
    waiting: usize,
    /// Blocks of that memory, free and in total.
    free_blocks: usize,
    total_blocks: usize,
    /// Tokens generated since the start.
    generated_tokens: u64,
}

/// Answers without asking the engine to stop for it.
pub(crate) async fn handle(State(state): State<AppState>) -> (StatusCode, Json<Health>) {
    let metrics = state.llm().metrics();
    let (code, status) = if state.is_draining() {
        (StatusCode::SERVICE_UNAVAILABLE, "draining")
    } else {
        (StatusCode::OK, "ok")
    };
    let health = Health {
        status,
        running: metrics.n_running,
        waiting: metrics.n_waiting,
        free_blocks: metrics.n_free_blocks,
        total_blocks: metrics.n_blocks,
        generated_tokens: metrics.generated_tokens,
    };
    (code, Json(health))
}
