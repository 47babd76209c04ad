//! `POST /v1/chat/completions`.

mod convert;
mod thinking;
mod tools;
mod types;
mod validate;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};

use pelton_llm::{ChatRequest, Generation};

use crate::access::Caller;
use crate::answering::Answering;
use crate::error::ApiError;
use crate::state::{AppState, Running};
use crate::wire::{Ask, Body, Head, sse};

pub(crate) use convert::ChunkMaker;

/// Reads and checks a body, as far as it does not depend on the model.
pub(crate) fn parse(bytes: &[u8], defaults: Generation) -> Result<(ChatRequest, Ask), ApiError> {
    validate::check(types::ChatBody::read(bytes)?, defaults)
}

/// Answers a conversation, in one piece or as a stream.
///
/// When the client goes away this future, or the stream it returned, is dropped, and the request
/// with it.
pub(crate) async fn handle(
    State(state): State<AppState>,
    running: Running,
    caller: Caller,
    body: Body,
) -> Result<Response, ApiError> {
    let llm = state.llm()?.clone();
    let app = state.clone();
    let (generating, ask) = super::reading(&state, body, move |bytes| {
        let body = types::ChatBody::read(&bytes)?;
        drop(bytes);
        app.check_model(body.model.as_deref())?;
        let defaults = caller.over(llm.default_generation());
        let (request, ask) = validate::check(body, defaults)?;
        Ok((llm.chat(request).map_err(convert::error)?, ask))
    })
    .await?;
    let mut answering = Answering::new(&state, &running, caller, generating);
    let n_choices = answering.n_choices();
    let head = Head::new(&state, "chatcmpl-");
    if let Some(options) = ask.stream {
        let chunks = convert::ChunkMaker::new(head, options, ask, n_choices);
        return Ok(sse(&state, running, answering, options, chunks));
    }
    let mut answer = convert::Gatherer::new(n_choices, ask);
    while let Some(event) = answering.next().await {
        answer.add(event)?;
    }
    Ok(Json(answer.finish(head, answering.usage())).into_response())
}
