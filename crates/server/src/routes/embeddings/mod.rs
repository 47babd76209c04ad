//! `POST /v1/embeddings`.

mod types;
mod validate;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use pelton_llm::{EmbedRequest, EmbedTicket, Embedder, Embeddings, LlmError, PreparedEmbed};

use super::vectors::{Texts, answered};
use crate::error::ApiError;
use crate::state::{AppState, Running};
use crate::wire::Body;
use types::{EmbeddingsBody, VectorFormat};

/// Reads and checks a body, as far as it does not depend on the model.
pub(crate) fn parse(bytes: &[u8]) -> Result<EmbedRequest, ApiError> {
    validate::check(EmbeddingsBody::read(bytes)?).map(|(request, _)| request)
}

/// Reads a body as the handler does.
pub(crate) fn read_only(bytes: &[u8]) -> Result<(), ApiError> {
    EmbeddingsBody::read(bytes).map(drop)
}

/// A request, and the format of its vectors.
struct Embed(EmbedRequest, VectorFormat);

impl Texts for Embed {
    type Prepared = PreparedEmbed;
    type Answer = Embeddings;

    fn prepare(&self, model: &Embedder) -> Result<PreparedEmbed, LlmError> {
        model.prepare(&self.0)
    }

    fn n_tokens(prepared: &PreparedEmbed) -> usize {
        prepared.n_tokens()
    }

    fn submit(
        model: &Embedder,
        prepared: PreparedEmbed,
        reply: impl FnOnce(Result<Embeddings, LlmError>) + Send + 'static,
    ) -> Result<EmbedTicket, LlmError> {
        model.submit(prepared, reply)
    }

    fn n_read(answer: &Embeddings) -> usize {
        answer.n_tokens.iter().sum()
    }
}

/// Makes vectors of texts.
pub(crate) async fn handle(
    State(state): State<AppState>,
    running: Running,
    body: Body,
) -> Result<Response, ApiError> {
    let read = |bytes: Vec<u8>| {
        let mut body = EmbeddingsBody::read(&bytes)?;
        let model = body.model.take();
        let (request, format) = validate::check(body)?;
        Ok((model, Embed(request, format)))
    };
    let (model, embeddings, Embed(_, format)) = answered(&state, &running, body, read).await?;
    let name = model.name().to_owned();
    let answer = super::blocking(move || Ok(types::answer(name, embeddings, format))).await?;
    Ok(Json(answer).into_response())
}
