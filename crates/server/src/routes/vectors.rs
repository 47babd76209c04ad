//! Requests that a model reads and answers without text: for vectors, scores and labels.
//!
//! ```text
//!   body ──▶ model by name ──▶ tokens ──▶ queue of the model ──▶ answer
//!                 ▲                            │ its step hangs, and it is given up
//!                 └──────── once more ─────────┘
//! ```
//!
//! When the client goes away the handler is dropped, and with its ticket the request.

use std::sync::Arc;

use pelton_llm::{EmbedTicket, Embedder, Fault, LlmError};
use tokio::sync::oneshot;

use super::{blocking, reading};
use crate::error::ApiError;
use crate::models::Model;
use crate::state::{AppState, Running};
use crate::wire::Body;

/// A request whose texts a model reads.
pub(super) trait Texts: Send + 'static {
    /// The texts as tokens.
    type Prepared;
    type Answer: Send + 'static;

    /// Turns the texts into tokens, and checks everything that depends on the model.
    fn prepare(&self, model: &Embedder) -> Result<Self::Prepared, LlmError>;

    /// Tokens of all texts.
    fn n_tokens(prepared: &Self::Prepared) -> usize;

    /// Puts the texts into the queue of the model.
    fn submit(
        model: &Embedder,
        prepared: Self::Prepared,
        reply: impl FnOnce(Result<Self::Answer, LlmError>) + Send + 'static,
    ) -> Result<EmbedTicket, LlmError>;

    /// Tokens of all texts of an answer.
    fn n_read(answer: &Self::Answer) -> usize;
}

/// A request in the queue of a model.
struct Submitted<T: Texts> {
    request: T,
    model: Model,
    ticket: EmbedTicket,
    answer: oneshot::Receiver<Result<T::Answer, LlmError>>,
}

impl<T: Texts> Submitted<T> {
    /// Reserves the tokens of the texts with `reserve`, and asks the model.
    fn new(
        request: T,
        model: Model,
        reserve: impl FnOnce(usize) -> Result<(), ApiError>,
    ) -> Result<Self, ApiError> {
        let embedder = model.embedder()?;
        let prepared = request.prepare(embedder)?;
        reserve(T::n_tokens(&prepared))?;
        let (send, answer) = oneshot::channel();
        let ticket = T::submit(embedder, prepared, move |answer| {
            // The client may have gone, and then the answer is dropped.
            let _ = send.send(answer);
        })?;
        Ok(Self { request, model, ticket, answer })
    }

    /// Waits for the answer; `None` where the model is given up before.
    async fn wait(&mut self) -> Option<Result<T::Answer, ApiError>> {
        tokio::select! {
            biased;
            answer = &mut self.answer => Some(match answer {
                Ok(answer) => answer.map_err(ApiError::from),
                Err(_) => Err(ApiError::draining()),
            }),
            () = self.model.lost() => None,
        }
    }

    /// Asks the next version of the model, which is reserved for already.
    async fn again(self, state: &AppState) -> Result<Self, ApiError> {
        let Self { request, model, ticket, .. } = self;
        drop(ticket);
        tracing::warn!("the model was given up; the request is run again");
        let app = state.clone();
        let renewed = blocking(move || {
            let name = model.name().to_owned();
            drop(model);
            Self::new(request, app.model(Some(&name))?, |_| Ok(()))
        });
        renewed.await.map_err(|error| {
            tracing::error!("the request was not run again: {}", error.body.message);
            hung()
        })
    }
}

/// Reads a body with `read`, which also returns the name of the model, and waits for the answer.
pub(super) async fn answered<T: Texts>(
    state: &AppState,
    running: &Running,
    body: Body,
    read: impl FnOnce(Vec<u8>) -> Result<(Option<String>, T), ApiError> + Send + 'static,
) -> Result<(Model, T::Answer, T), ApiError> {
    let (app, gate, about) = (state.clone(), running.ticket(), Arc::clone(running.about()));
    let mut submitted = reading(state, body, move |bytes| {
        let (asked, request) = read(bytes)?;
        let model = app.reader(asked.as_deref(), &about)?;
        let reserve = |n_tokens| gate.map_or(Ok(()), |gate| gate.reserve_prompt(n_tokens));
        Submitted::new(request, model, reserve)
    })
    .await?;
    let answer = match submitted.wait().await {
        Some(answer) => answer,
        None => {
            submitted = submitted.again(state).await?;
            submitted.wait().await.unwrap_or_else(|| Err(hung()))
        }
    }?;
    let Submitted { request, model, ticket, .. } = submitted;
    drop(ticket);
    running.used(model.name(), T::n_read(&answer)).await;
    Ok((model, answer, request))
}

fn hung() -> ApiError {
    ApiError::internal(Fault::Hung.to_string())
}
