//! `GET /ready`: 200 if a new request would be accepted, else 503. It needs no key, so it says no
//! more than that.
//!
//! A server listens only after its model is loaded; before that, connections are refused.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use crate::state::{AppState, Condition};

/// Yes or no.
#[derive(serde::Serialize)]
pub(crate) struct Ready {
    status: &'static str,
}

/// Answers whether a new request would be accepted.
pub(crate) async fn handle(State(state): State<AppState>) -> (StatusCode, Json<Ready>) {
    let (code, status) = match state.condition() {
        Condition::Serving => (StatusCode::OK, "ready"),
        Condition::Draining | Condition::Failed => (StatusCode::SERVICE_UNAVAILABLE, "not ready"),
    };
    (code, Json(Ready { status }))
}
