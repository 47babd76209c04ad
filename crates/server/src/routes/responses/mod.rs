//! `POST /v1/responses` and its stored responses: conversations as the clients of OpenAI's Responses
//! hold them.
//!
//! ```text
//! previous_response_id ─ store ─▶ history ┐
//! instructions, input ─ input ─▶ turns ───┴▶ ChatRequest ─▶ events ─ growing ─▶ response, stream
//!                                                                               └ keep ─▶ store
//! ```
//!
//! A stored response is in memory alone: it is lost when its time is over, when there is no more
//! room, and when the server ends.

mod background;
mod echo;
mod growing;
mod input;
mod items;
mod keep;
mod list;
mod record;
mod store;
mod tools;
mod types;

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use pelton_base::Usage;
use pelton_llm::{ChatRequest, Event, Generating, Generation, Llm, LlmError};
use pelton_text::Message;

use crate::access::Caller;
use crate::answering::Answering;
use crate::error::ApiError;
use crate::models::{Model, Traits};
use crate::outcome::About;
use crate::routes::conversation::renamed;
use crate::state::{AppState, Running};
use crate::wire::{Body, Chunks, Head, Id, Ignored, Parameters, StreamOptions, StreamState, sse};

use echo::Echo;
use growing::Growing;
use keep::Keep;
use record::Record;
use types::{Conversation, ResponsesBody};

pub use store::ResponsesConfig;
pub(crate) use store::Store;

/// A request that is accepted: its tokens are on their way.
struct Accepted {
    generating: Generating,
    /// The request, to run it again if its engine is given up.
    again: Option<ChatRequest>,
    model: Model,
    echo: Echo,
    /// Where the response goes, if it is stored.
    keep: Option<Keep>,
    ignored: Ignored,
    is_background: bool,
    is_stream: bool,
    shows_own_thoughts: bool,
}

/// Reads and checks a body, as far as it does not depend on the model.
pub(crate) fn parse(bytes: &[u8]) -> Result<(Vec<Message>, Generation), ApiError> {
    let body = ResponsesBody::read(bytes)?;
    let (conversation, generation, _) = body.split(Generation::default(), true)?;
    Ok((keep::messages(&conversation, &Vec::new()), generation))
}

/// Reads a body as the handler does.
pub(crate) fn read_only(bytes: &[u8]) -> Result<(), ApiError> {
    ResponsesBody::read(bytes).map(drop)
}

/// Reads a body of `input_tokens` as the handler does.
pub(crate) fn read_only_count(bytes: &[u8]) -> Result<(), ApiError> {
    Conversation::read_alone(bytes).map(drop)
}

/// Answers a conversation: in one piece, as a stream, or in the background.
///
/// When the client goes away this future, or the stream it returned, is dropped, and the request
/// with it; a response in the background goes on.
pub(crate) async fn create(
    State(state): State<AppState>,
    running: Running,
    caller: Caller,
    body: Body,
) -> Result<Response, ApiError> {
    let (app, about) = (state.clone(), Arc::clone(running.about()));
    let work = move |bytes: Vec<u8>| {
        let body = ResponsesBody::read(&bytes)?;
        drop(bytes);
        accept(&app, (caller, &about), body)
    };
    let accepted = super::reading(&state, body, work).await?;
    let ignored = accepted.ignored.clone();
    let mut response = answer(&state, running, caller, accepted).await?;
    ignored.mark(&mut response);
    Ok(response)
}

fn accept(
    app: &AppState,
    (caller, about): (Caller, &About),
    body: ResponsesBody,
) -> Result<Accepted, ApiError> {
    let store = app.responses();
    if body.store == Some(true) && !store.is_on() {
        let message = "`store`: this server stores no responses (`--responses-memory 0`)";
        return Err(ApiError::param("store", message));
    }
    let is_stored = body.store.unwrap_or(true) && store.is_on();
    if body.is_background && !is_stored {
        let message = "`background` needs a response that is stored: leave `store` out";
        return Err(ApiError::param("background", message));
    }
    about.stated.note_parameters(body.stated());
    let (is_background, is_stream) = (body.is_background, body.is_stream);
    let shows_own_thoughts = body.shows_own_thoughts;
    let history = keep::history(app, caller.tenant, body.conversation.previous.as_deref())?;
    let asked = body.conversation.model.as_deref();
    let model = app.route(asked, (caller, about), || Traits {
        has_token_ids: body.has_token_ids(),
        is_particular: body.is_particular(),
        ..keep::traits(&body.conversation, &history)
    })?;
    let llm = model.llm()?;
    let defaults = caller.over(llm.default_generation());
    let (mut conversation, generation, echo) = body.split(defaults, is_stored)?;
    let options = conversation.options(&llm.thoughts());
    let messages = keep::messages(&conversation, &history);
    let Conversation { input, ignored, .. } = conversation;
    let request = ChatRequest { messages, generation, options };
    let again = app.again(&request);
    let generating = ask(llm, request)?;
    let keep = is_stored.then(|| Keep {
        store: Arc::clone(store),
        tenant: caller.tenant,
        history,
        turns: input.turns,
        items: input.items,
    });
    Ok(Accepted {
        generating,
        again,
        model,
        echo,
        keep,
        ignored,
        is_background,
        is_stream,
        shows_own_thoughts,
    })
}

fn ask(llm: &Llm, request: ChatRequest) -> Result<Generating, ApiError> {
    llm.chat(request).map_err(error)
}

async fn answer(
    state: &AppState,
    running: Running,
    caller: Caller,
    accepted: Accepted,
) -> Result<Response, ApiError> {
    let Accepted { generating, again, model, echo, keep, is_background, is_stream, .. } = accepted;
    let answering = Answering::new(state, &running, &model, caller, generating);
    let mut answering = answering.or_again(again, ask);
    let head = Head::new(&model, "resp_");
    running.about().stated.note_answer(&head.id);
    let mut growing = Growing::new(head, echo, accepted.shows_own_thoughts);
    match keep {
        Some(keep) if is_background => {
            let record = background::start(growing, answering, running, keep, is_stream)?;
            if is_stream {
                return Ok(background::follow(record, 0, state.config().keep_alive));
            }
            Ok(json(record.response().as_ref().to_owned()))
        }
        keep if is_stream => {
            let stream = Streaming { growing, keep, has_failed: false };
            Ok(sse(state, running, answering, StreamOptions::default(), stream))
        }
        keep => {
            while let Some(event) = answering.next().await {
                growing.event(event, &mut ())?;
            }
            growing.settle(answering.usage(), &mut ());
            if let Some(keep) = keep {
                keep.store(&mut growing);
            }
            Ok(json(growing.json()))
        }
    }
}

/// An answer that is JSON already.
fn json(text: String) -> Response {
    let kind = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

/// An error with the names of this dialect.
fn error(failed: LlmError) -> ApiError {
    const RENAMED: &[(&str, &str)] =
        &[("prompt", "input"), ("messages", "input"), ("max_tokens", "max_output_tokens")];
    renamed(failed.into(), RENAMED, ".parameters")
}

/// A response that is sent while it grows.
struct Streaming {
    growing: Growing,
    keep: Option<Keep>,
    has_failed: bool,
}

impl StreamState for Streaming {
    const DONE: Option<&str> = None;

    fn start(&mut self, out: &mut Chunks) {
        self.growing.start(out);
    }

    fn event(&mut self, event: Event, out: &mut Chunks) {
        if let Err(error) = self.growing.event(event, out) {
            self.has_failed = true;
            out.fail(error);
        }
    }

    fn end(&mut self, usage: Usage, out: &mut Chunks) {
        if self.has_failed {
            return;
        }
        self.growing.settle(usage, out);
        if let Some(keep) = self.keep.take() {
            keep.store(&mut self.growing);
        }
        self.growing.conclude(out);
    }

    fn failed(&mut self, error: &ApiError, out: &mut Chunks) {
        self.growing.fail(error.clone(), out);
    }
}

fn find(state: &AppState, caller: Caller, id: &str) -> Result<Arc<Record>, ApiError> {
    let found = state.responses().get(id, caller.tenant, Instant::now());
    found.ok_or_else(|| ApiError::no_response(id))
}

/// A stored response, or the events of one in the background.
pub(crate) async fn one(
    State(state): State<AppState>,
    caller: Caller,
    Id(id): Id,
    query: Parameters,
) -> Result<Response, ApiError> {
    let from = list::stream_from(&query)?;
    let record = find(&state, caller, &id)?;
    match from {
        None => Ok(json(record.response().as_ref().to_owned())),
        Some(from) if record.is_logged() => {
            Ok(background::follow(record, from, state.config().keep_alive))
        }
        Some(_) => {
            let message = "`stream`: only a response that was asked for with `background` and \
                           `stream` can be streamed again";
            Err(ApiError::param("stream", message))
        }
    }
}

/// Removes a stored response; one that grows in the background ends.
pub(crate) async fn remove(
    State(state): State<AppState>,
    caller: Caller,
    Id(id): Id,
) -> Result<Response, ApiError> {
    #[derive(serde::Serialize)]
    struct Deleted<'a> {
        id: &'a str,
        object: &'static str,
        deleted: bool,
    }
    let removed = state.responses().remove(&id, caller.tenant, Instant::now());
    let record = removed.ok_or_else(|| ApiError::no_response(&id))?;
    record.cancel.notify_one();
    Ok(Json(Deleted { id: record.id(), object: "response", deleted: true }).into_response())
}

/// Ends a response that grows in the background; one that has ended stays as it is.
pub(crate) async fn cancel(
    State(state): State<AppState>,
    caller: Caller,
    Id(id): Id,
) -> Result<Response, ApiError> {
    let record = find(&state, caller, &id)?;
    if !record.is_background() {
        let message = format!("the response `{}` was not asked for with `background`", record.id());
        return Err(ApiError::param("response_id", message));
    }
    record.cancel.notify_one();
    background::ended(&record).await;
    Ok(json(record.response().as_ref().to_owned()))
}

/// The items of the input of a stored response.
pub(crate) async fn input_items(
    State(state): State<AppState>,
    caller: Caller,
    Id(id): Id,
    query: Parameters,
) -> Result<Response, ApiError> {
    let query = list::PageQuery::read(&query)?;
    let record = find(&state, caller, &id)?;
    Ok(Json(query.of(&record.input)?).into_response())
}

/// Counts the tokens of a conversation, as the model would read it.
pub(crate) async fn input_tokens(
    State(state): State<AppState>,
    running: Running,
    caller: Caller,
    body: Body,
) -> Result<Response, ApiError> {
    #[derive(serde::Serialize)]
    struct Count {
        object: &'static str,
        input_tokens: usize,
    }
    let (app, about) = (state.clone(), Arc::clone(running.about()));
    let (count, ignored) = super::reading(&state, body, move |bytes| {
        let mut conversation = Conversation::read_alone(&bytes)?;
        drop(bytes);
        let history = keep::history(&app, caller.tenant, conversation.previous.as_deref())?;
        let asked = conversation.model.as_deref();
        let traits = || keep::traits(&conversation, &history);
        let model = app.route(asked, (caller, &about), traits)?;
        let llm = model.llm()?;
        let options = conversation.options(&llm.thoughts());
        let messages = keep::messages(&conversation, &history);
        let input_tokens = llm.count_chat(&messages, &options).map_err(error)?;
        Ok((Count { object: "response.input_tokens", input_tokens }, conversation.ignored))
    })
    .await?;
    let mut response = Json(count).into_response();
    ignored.mark(&mut response);
    Ok(response)
}
