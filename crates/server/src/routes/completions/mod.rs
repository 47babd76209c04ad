//! `POST /v1/completions`.

mod convert;
mod echo;
mod types;
mod validate;

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use pelton_llm::{BestOf, CompletionRequest, Generation};

use crate::access::Caller;
use crate::answering::Answering;
use crate::error::ApiError;
use crate::routes::conversation::renamed;
use crate::state::{AppState, Running};
use crate::wire::{Ask, Body, Head, Now, sse};

pub(crate) use convert::{ChunkMaker, Pieces};

/// Reads and checks a body, as far as it does not depend on the model.
pub(crate) fn parse(
    bytes: &[u8],
    defaults: Generation,
) -> Result<(CompletionRequest, Ask), ApiError> {
    validate::check(types::CompletionBody::read(bytes)?, defaults)
}

/// Parts of a request that its answers need.
struct About {
    /// Answers to keep and to generate per prompt, where the numbers differ.
    kept: Option<(usize, usize)>,
    echoes: Vec<convert::Echo>,
    /// Likeliest tokens of each place.
    n_top: usize,
    /// The id that the client chose.
    id: Option<String>,
}

/// Reads a body as the handler does.
pub(crate) fn read_only(bytes: &[u8]) -> Result<(), ApiError> {
    types::CompletionBody::read(bytes).map(drop)
}

/// Continues texts, in one piece or as a stream.
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
    let (generating, ask, about, model, again) = super::reading(&state, body, move |bytes| {
        let mut body = types::CompletionBody::read(&bytes)?;
        drop(bytes);
        about.stated.note_parameters(body.generation.stated());
        let model = app.route(body.model.as_deref(), (caller, &about), || body.traits())?;
        let llm = model.llm()?;
        let defaults = caller.over(llm.default_generation());
        let id = body.request_id.take();
        let (request, ask) = validate::check(body, defaults)?;
        let kept = validate::kept(&request.generation);
        let n_top = request.generation.sampling.logprobs.unwrap_or(0);
        let echoes = echo::Texts::of(&request, ask.shown);
        let again = app.again(&request);
        // A prompt is echoed with its scores, which the library knows by the other name.
        let is_of_echo = ask.shown.echo && ask.shown.prompt_logprobs.is_none();
        let names: &[_] = if is_of_echo { &[("prompt_logprobs", "echo")] } else { &[] };
        let generating =
            llm.complete(request).map_err(|failed| renamed(failed.into(), names, ""))?;
        let echoes = echoes.echoes(llm, &generating);
        Ok((generating, ask, About { kept, echoes, n_top, id }, model, again))
    })
    .await?;
    let mut answering = Answering::new(&state, &running, &model, caller, generating)
        .or_again(again, |llm, request| Ok(llm.complete(request)?));
    let n_choices = answering.n_choices();
    let About { kept, echoes, n_top, id } = about;
    let head = Head::new(&model, "cmpl-").named("cmpl-", id);
    running.about().stated.note_answer(&head.id);
    let pieces = convert::Pieces::new(n_choices, ask, echoes).with_top(n_top);
    if let Some(options) = ask.stream {
        let chunks = convert::ChunkMaker::new(head, options, pieces);
        return Ok(sse(&state, running, answering, options, chunks));
    }
    let best = kept.map(|(n, best_of)| BestOf::new(n_choices / best_of, n, best_of));
    let mut answer = convert::Gatherer::new(pieces, best);
    answering.gather(|event| answer.add(event)).await?;
    let now = Now { usage: answering.usage(), timings: answering.timings() };
    Ok(Json(answer.finish(head, now)).into_response())
}
