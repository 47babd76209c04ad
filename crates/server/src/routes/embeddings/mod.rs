//! `POST /v1/embeddings`.

mod types;
mod validate;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use pelton_llm::EmbedRequest;
use tokio::sync::oneshot;

use crate::error::ApiError;
use crate::state::{AppState, Running};
use crate::wire::Body;

/// Reads and checks a body, as far as it does not depend on the model.
pub(crate) fn parse(bytes: &[u8]) -> Result<EmbedRequest, ApiError> {
    validate::check(types::EmbeddingsBody::read(bytes)?).map(|(request, _)| request)
}

/// Reads a body as the handler does.
pub(crate) fn read_only(bytes: &[u8]) -> Result<(), ApiError> {
    types::EmbeddingsBody::read(bytes).map(drop)
}

/// Makes vectors of texts.
///
/// When the client goes away this future is dropped, and with its ticket the request.
pub(crate) async fn handle(
    State(state): State<AppState>,
    running: Running,
    body: Body,
) -> Result<Response, ApiError> {
    let (app, gate) = (state.clone(), running.ticket());
    let (send, answer) = oneshot::channel();
    let (ticket, format, model) = super::reading(&state, body, move |bytes| {
        let body = types::EmbeddingsBody::read(&bytes)?;
        drop(bytes);
        let model = app.model(body.model.as_deref())?;
        let embedder = model.embedder()?;
        let (request, format) = validate::check(body)?;
        let prepared = embedder.prepare(request)?;
        gate.map_or(Ok(()), |gate| gate.reserve_prompt(prepared.n_tokens()))?;
        let ticket = embedder.submit(prepared, move |embeddings| {
            // The client may have gone, and then the answer is dropped.
            let _ = send.send(embeddings);
        })?;
        Ok((ticket, format, model))
    })
    .await?;
    let embeddings = answer.await.map_err(|_| ApiError::draining())??;
    drop(ticket);
    let name = model.name().to_owned();
    running.used(&name, embeddings.n_tokens.iter().sum()).await;
    let answer = super::blocking(move || Ok(types::answer(name, embeddings, format))).await?;
    Ok(Json(answer).into_response())
}
