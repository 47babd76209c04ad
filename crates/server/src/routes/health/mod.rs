//! `GET /health`: 200 while requests are accepted, 503 while the server drains or has failed.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use crate::served::Served;
use crate::state::AppState;

/// The state of the server.
#[derive(Default, serde::Serialize)]
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
    let (code, status) = if state.served().has_failed() {
        (StatusCode::SERVICE_UNAVAILABLE, "failed")
    } else if state.is_draining() {
        (StatusCode::SERVICE_UNAVAILABLE, "draining")
    } else {
        (StatusCode::OK, "ok")
    };
    let mut health = Health { status, ..Health::default() };
    match state.served() {
        Served::Text(llm) => {
            let metrics = llm.metrics();
            health.running = metrics.n_running;
            health.waiting = metrics.n_waiting;
            health.free_blocks = metrics.n_free_blocks;
            health.total_blocks = metrics.n_blocks;
            health.generated_tokens = metrics.generated_tokens;
        }
        // Waiting requests for vectors hold no KV memory.
        Served::Vectors(embedder) => health.waiting = embedder.metrics().n_waiting,
    }
    (code, Json(health))
}
