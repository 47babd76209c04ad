//! `POST /v1/chat/completions`.

mod convert;
mod types;
mod validate;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};

use crate::error::ApiError;
use crate::state::{AppState, Running};
use crate::wire::{Head, JsonObject, sse};

/// Answers a conversation, in one piece or as a stream.
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
        let body = types::ChatBody::read(body.0)?;
        app.check_model(body.model.as_deref())?;
        let (request, ask) = validate::check(body, llm.default_generation())?;
        Ok((llm.chat(request).map_err(convert::error)?, ask))
    })
    .await?;
    let head = Head::new(&state, "chatcmpl-");
    if let Some(options) = ask.stream {
        let chunks = convert::ChunkMaker::new(head, options, ask.logprobs, generating.n_choices());
        return Ok(sse(&state, running, generating, chunks));
    }
    let mut answer = convert::Gatherer::new(generating.n_choices(), ask.logprobs);
    while let Some(event) = generating.next().await {
        answer.add(event)?;
    }
    Ok(Json(answer.finish(head, generating.usage())).into_response())
}
