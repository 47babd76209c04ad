//! `POST /v1/score` and `/score`: how well texts go together, pair by pair.

mod types;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use pelton_llm::ScoreRequest;

use super::rerank::Pairs;
use super::vectors::answered;
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

impl Pairs for ScoreBody {
    fn pairs(&self) -> &ScoreRequest {
        &self.request
    }
}

/// Scores pairs of texts.
pub(crate) async fn handle(
    State(state): State<AppState>,
    running: Running,
    body: Body,
) -> Result<Response, ApiError> {
    let read = |bytes: Vec<u8>| {
        let mut body = ScoreBody::read(&bytes)?;
        Ok((body.model.take(), body))
    };
    let (model, scores, _) = answered(&state, &running, body, read).await?;
    Ok(Json(answer(model.name().to_owned(), scores)).into_response())
}
