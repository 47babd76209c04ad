//! `POST /v1/classify` and `/classify`: the labels of texts.

mod types;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use pelton_llm::{Classes, EmbedTicket, Embedder, LlmError, PreparedClasses};

use super::vectors::{Texts, answered};
use crate::error::ApiError;
use crate::state::{AppState, Running};
use crate::wire::Body;
use types::{ClassifyBody, answer};

/// Reads a body as the handler does.
pub(crate) fn read_only(bytes: &[u8]) -> Result<(), ApiError> {
    ClassifyBody::read(bytes).map(drop)
}

impl Texts for ClassifyBody {
    type Prepared = PreparedClasses;
    type Answer = Classes;

    fn prepare(&self, model: &Embedder) -> Result<PreparedClasses, LlmError> {
        model.prepare_classes(&self.inputs, self.truncate)
    }

    fn n_tokens(prepared: &PreparedClasses) -> usize {
        prepared.n_tokens()
    }

    fn submit(
        model: &Embedder,
        prepared: PreparedClasses,
        reply: impl FnOnce(Result<Classes, LlmError>) + Send + 'static,
    ) -> Result<EmbedTicket, LlmError> {
        model.submit_classes(prepared, reply)
    }

    fn n_read(answer: &Classes) -> usize {
        answer.n_tokens.iter().sum()
    }
}

/// Gives each text the probabilities of the model's labels.
pub(crate) async fn handle(
    State(state): State<AppState>,
    running: Running,
    body: Body,
) -> Result<Response, ApiError> {
    let read = |bytes: Vec<u8>| {
        let mut body = ClassifyBody::read(&bytes)?;
        Ok((body.model.take(), body))
    };
    let (model, classes, _) = answered(&state, &running, body, read).await?;
    let labels = &model.embedder()?.info().labels;
    Ok(Json(answer(model.name().to_owned(), labels, classes)).into_response())
}
