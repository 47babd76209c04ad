//! `POST /v1/completions`.

mod convert;
mod types;
mod validate;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};

use crate::error::ApiError;
use crate::state::{AppState, Running};
use crate::wire::{Head, JsonObject, sse};

/// Continues texts, in one piece or as a stream.
///
/// When the client goes away this future, or the stream it returned, is dropped, and the request
/// with it.
pub(crate) async fn handle(
    State(state): State<AppState>,
    running: Running,
    body: JsonObject,
) -> Result<Response, ApiError> {
    let llm = state.llm().clone();
    let app = state.clone();
    let (mut generating, ask) = super::blocking(move || {
        let body = types::CompletionBody::read(body.0)?;
        app.check_model(body.model.as_deref())?;
        let (request, ask) = validate::check(body, llm.default_generation())?;
        Ok((llm.complete(request)?, ask))
    })
    .await?;
    let head = Head::new(&state, "cmpl-");
    let pieces = convert::Pieces::new(generating.n_choices(), ask.logprobs);
    if let Some(options) = ask.stream {
        let chunks = convert::ChunkMaker::new(head, options, pieces);
        return Ok(sse(&state, running, generating, chunks));
    }
    let mut answer = convert::Gatherer::new(pieces);
    while let Some(event) = generating.next().await {
        answer.add(event)?;
    }
    Ok(Json(answer.finish(head, generating.usage())).into_response())
}
