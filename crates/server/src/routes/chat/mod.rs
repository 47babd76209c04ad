//! `POST /v1/chat/completions`.

mod convert;
mod rendering;
mod thinking;
mod tools;
mod types;
mod validate;

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};

use pelton_llm::{ChatRequest, Generation};

use crate::access::Caller;
use crate::answering::Answering;
use crate::error::ApiError;
use crate::models::Traits;
use crate::state::{AppState, Running};
use crate::wire::{Ask, Body, Head, Ids, Now, sse};

pub(crate) use convert::{Before, ChunkMaker, error, logprobs};
pub(crate) use rendering::Rendered;
pub(crate) use types::TokenLogprob;

/// Reads and checks a body, as far as it does not depend on the model.
pub(crate) fn parse(bytes: &[u8], defaults: Generation) -> Result<(ChatRequest, Ask), ApiError> {
    validate::check(types::ChatBody::read(bytes)?, defaults)
}

/// Reads a body as the handler does.
pub(crate) fn read_only(bytes: &[u8]) -> Result<(), ApiError> {
    types::ChatBody::read(bytes).map(drop)
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
    let (app, about) = (state.clone(), Arc::clone(running.about()));
    let (generating, ask, before, id, model, again) = super::reading(&state, body, move |bytes| {
        let mut body = types::ChatBody::read(&bytes)?;
        drop(bytes);
        about.stated.note_parameters(body.generation.stated());
        rendering::check_trust(&body.rendering, app.config().trust_request_chat_template)?;
        let id = body.request_id.take();
        let model = app.route(body.model.as_deref(), (caller, &about), || Traits {
            has_tools: !body.tools.tools.is_empty(),
            has_token_ids: body.generation.has_token_ids(),
            is_particular: body.generation.is_particular()
                || body.thinking != thinking::Thinking::default()
                || body.rendering != rendering::Rendering::default(),
            ..Traits::of_messages(&body.messages)
        })?;
        let llm = model.llm()?;
        let defaults = caller.over(llm.default_generation());
        let (mut request, ask) = validate::check(body, defaults)?;
        thinking::forgive(&mut request.options, llm);
        let echo = last_text(&request).filter(|_| ask.shown.echo);
        let again = app.again(&request);
        let generating = llm.chat(request).map_err(convert::error)?;
        let tokens = ask.shown.token_ids.then(|| Ids::of(generating.prompt(0)));
        let (n_choices, n_prompt) = (generating.n_choices(), generating.prompt(0).len());
        let before = Before { n_choices, echo, tokens, n_prompt };
        Ok((generating, ask, before, id, model, again))
    })
    .await?;
    let mut answering = Answering::new(&state, &running, &model, caller, generating)
        .or_again(again, |llm, request| llm.chat(request).map_err(convert::error));
    let head = Head::new(&model, "chatcmpl-").named("chatcmpl-", id);
    running.about().stated.note_answer(&head.id);
    if let Some(options) = ask.stream {
        let chunks = convert::ChunkMaker::new(head, options, ask, before);
        return Ok(sse(&state, running, answering, options, chunks));
    }
    let mut answer = convert::Gatherer::new(before, ask);
    answering.gather(|event| answer.add(event)).await?;
    let now = Now { usage: answering.usage(), timings: answering.timings() };
    Ok(Json(answer.finish(head, now)).into_response())
}

/// The text of the last message, where it is one of the assistant, as the answer is.
fn last_text(request: &ChatRequest) -> Option<String> {
    let last = request.messages.last().filter(|message| message.role == "assistant")?;
    last.content.as_str().map(str::to_owned)
}
