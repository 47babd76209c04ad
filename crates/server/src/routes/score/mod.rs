//! `POST /v1/score` and `/score`: how well texts go together, pair by pair.

mod types;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use pelton_llm::ScoreRequest;

use super::rerank::scored;
use crate::error::ApiError;
use crate::state::{AppState, Running};
use crate::wire::Body;
pub(crate) use types::SIDES;
use types::{ScoreBody, answer};

/// Reads and checks a body, as far as it does not depend on the model.
pub(crate) fn parse(bytes: &[u8]) -> Result<ScoreRequest, ApiError> {
    Ok(ScoreBody::read(bytes)?.request)
}

/// Reads a body as the handler does.
pub(crate) fn read_only(bytes: &[u8]) -> Result<(), ApiError> {
    ScoreBody::read(bytes).map(drop)
}

/// Scores pairs of texts.
pub(crate) async fn handle(
    State(state): State<AppState>,
    running: Running,
    body: Body,
) -> Result<Response, ApiError> {
    let read = |bytes: Vec<u8>| {
        let ScoreBody { model, request } = ScoreBody::read(&bytes)?;
        Ok((model, request))
    };
    let (model, scores, _) = scored(&state, &running, body, read, |request| request).await?;
    Ok(Json(answer(model.name().to_owned(), scores)).into_response())
}
