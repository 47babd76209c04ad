//! `GET /ready`: 200 while requests are accepted, 503 while the server drains or has failed.
//!
//! A server listens only after its model is loaded; before that, connections are refused.

use axum::Json;
use axum::extract::State;

use crate::error::ApiError;
use crate::state::AppState;

/// The answer of a server that takes requests.
#[derive(serde::Serialize)]
pub(crate) struct Ready {
    status: &'static str,
}

/// Answers whether a new request would be accepted.
pub(crate) async fn handle(State(state): State<AppState>) -> Result<Json<Ready>, ApiError> {
    state.accepts().map(|()| Json(Ready { status: "ready" }))
}
