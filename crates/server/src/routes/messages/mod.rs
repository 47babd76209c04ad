//! `POST /v1/messages` and `POST /v1/messages/count_tokens`: conversations as Anthropic's clients hold
//! them.
//!
//! ```text
//! system, messages ─ blocks ─▶ turns      tools, tool_choice ─ tools ─▶ ChatOptions
//! thinking         ─ thinking, model ─▶ switch and budget of the thought
//! events           ─ conversation::Parts ─▶ blocks, or the events of a stream
//! ```

mod blocks;
mod convert;
pub(crate) mod envelope;
mod thinking;
mod tools;
mod types;

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use pelton_llm::{ChatRequest, Generation, Llm};
use pelton_text::Message;

use crate::access::Caller;
use crate::answering::Answering;
use crate::error::ApiError;
use crate::request_id;
use crate::state::{AppState, Running};
use crate::wire::{Body, Head, Ignored, StreamOptions, sse};

use types::{Conversation, MessagesBody};

/// Reads and checks a body, as far as it does not depend on the model.
pub(crate) fn parse(bytes: &[u8]) -> Result<(Vec<Message>, Generation), ApiError> {
    let (conversation, generation) = MessagesBody::read(bytes)?.split(Generation::default())?;
    Ok((conversation.messages, generation))
}

/// Reads a body as the handler does.
pub(crate) fn read_only(bytes: &[u8]) -> Result<(), ApiError> {
    MessagesBody::read(bytes).map(drop)
}

/// Reads a body of `count_tokens` as the handler does.
pub(crate) fn read_only_count(bytes: &[u8]) -> Result<(), ApiError> {
    Conversation::read_alone(bytes).map(drop)
}

/// Answers a conversation, in one piece or as a stream.
///
/// When the client goes away this future, or the stream it returned, is dropped, and the request
/// with it.
pub(crate) async fn handle(
    State(state): State<AppState>,
    running: Running,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let (app, about) = (state.clone(), Arc::clone(running.about()));
    let (generating, ask, model, again) = super::reading(&state, body, move |bytes| {
        let body = MessagesBody::read(&bytes)?;
        drop(bytes);
        about.stated.note_parameters(body.stated());
        let asked = body.conversation.model.as_deref();
        let model = app.route(asked, (caller, &about), || body.traits())?;
        let llm = model.llm()?;
        let (max_tokens, is_stream) = (body.max_tokens, body.is_stream);
        let defaults = caller.over(llm.default_generation());
        let (conversation, generation) = body.split(defaults)?;
        let (request, ignored) = request(conversation, generation, llm);
        let again = app.again(&request);
        let generating = llm.chat(request).map_err(convert::error)?;
        Ok((generating, (max_tokens, is_stream, ignored), model, again))
    })
    .await?;
    let (max_tokens, is_stream, ignored) = ask;
    let mut answering = Answering::new(&state, &running, &model, caller, generating)
        .or_again(again, |llm, request| llm.chat(request).map_err(convert::error));
    let head = Head::new(&model, "msg_");
    running.about().stated.note_answer(&head.id);
    let mut response = if is_stream {
        let id = request_id::of(&headers).to_owned();
        let chunks = convert::ChunkMaker::new(head, answering.usage(), max_tokens, id);
        sse(&state, running, answering, StreamOptions::default(), chunks)
    } else {
        let mut answer = convert::Gatherer::new(max_tokens);
        while let Some(event) = answering.next().await {
            answer.add(event)?;
        }
        Json(answer.finish(&head, answering.usage())).into_response()
    };
    ignored.mark(&mut response);
    Ok(response)
}

/// Counts the tokens of a conversation, as the model would read it.
pub(crate) async fn count_tokens(
    State(state): State<AppState>,
    running: Running,
    caller: Caller,
    body: Body,
) -> Result<Response, ApiError> {
    #[derive(serde::Serialize)]
    struct Count {
        input_tokens: usize,
    }
    let (app, about) = (state.clone(), Arc::clone(running.about()));
    let (count, ignored) = super::reading(&state, body, move |bytes| {
        let conversation = Conversation::read_alone(&bytes)?;
        drop(bytes);
        let asked = conversation.model.as_deref();
        let model = app.route(asked, (caller, &about), || conversation.traits())?;
        let llm = model.llm()?;
        let (request, ignored) = request(conversation, Generation::default(), llm);
        let count = llm.count_chat(&request.messages, &request.options);
        Ok((Count { input_tokens: count.map_err(convert::error)? }, ignored))
    })
    .await?;
    let mut response = Json(count).into_response();
    ignored.mark(&mut response);
    Ok(response)
}

/// The request to the library, and the fields that this model cannot follow.
fn request(
    conversation: Conversation,
    generation: Generation,
    llm: &Llm,
) -> (ChatRequest, Ignored) {
    let Conversation { messages, mut options, thinking, mut ignored, .. } = conversation;
    thinking.over(&llm.thoughts(), &mut options, &mut ignored);
    (ChatRequest { messages, generation, options }, ignored)
}
