//! `GET /health`: whether the process should live. It is 200 while the server drains, too, because
//! a monitor that ends the process then would cut answers off; it is 503 after the engine failed.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use crate::access::Caller;
use crate::models::{Catalog, Served};
use crate::state::{AppState, Condition};

/// The state of the server.
#[derive(serde::Serialize)]
pub(crate) struct Health {
    status: &'static str,
    /// Absent for callers that may not see what other tenants do.
    #[serde(flatten)]
    load: Option<Load>,
}

/// How busy the server is.
#[derive(Default, serde::Serialize)]
struct Load {
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
pub(crate) async fn handle(
    State(state): State<AppState>,
    caller: Caller,
) -> (StatusCode, Json<Health>) {
    let (code, status) = match state.condition() {
        Condition::Serving => (StatusCode::OK, "ok"),
        Condition::Draining => (StatusCode::OK, "draining"),
        Condition::Failed => (StatusCode::SERVICE_UNAVAILABLE, "failed"),
    };
    let load = caller.sees_all().then(|| Load::of(state.models()));
    (code, Json(Health { status, load }))
}

impl Load {
    /// Of all models together.
    fn of(models: &Catalog) -> Self {
        let mut load = Self::default();
        for model in models.loaded() {
            match model.served() {
                Served::Text(llm) => {
                    let metrics = llm.metrics();
                    load.running += metrics.n_running;
                    load.waiting += metrics.n_waiting;
                    load.free_blocks += metrics.n_free_blocks;
                    load.total_blocks += metrics.n_blocks;
                    load.generated_tokens += metrics.generated_tokens;
                }
                // Waiting requests for vectors hold no KV memory.
                Served::Vectors(embedder) => load.waiting += embedder.metrics().n_waiting,
            }
        }
        load
    }
}
