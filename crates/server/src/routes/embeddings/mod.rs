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

/// Makes vectors of texts.
///
/// When the client goes away this future is dropped, and with its ticket the request.
pub(crate) async fn handle(
    State(state): State<AppState>,
    _running: Running,
    body: Body,
) -> Result<Response, ApiError> {
    let embedder = state.served().embedder()?.clone();
    let app = state.clone();
    let (send, answer) = oneshot::channel();
    let (ticket, format) = super::reading(&state, body, move |bytes| {
        let body = types::EmbeddingsBody::read(&bytes)?;
        drop(bytes);
        app.check_model(body.model.as_deref())?;
        let (request, format) = validate::check(body)?;
        let prepared = embedder.prepare(request)?;
        let ticket = embedder.submit(prepared, move |embeddings| {
            // The client may have gone, and then the answer is dropped.
            let _ = send.send(embeddings);
        })?;
        Ok((ticket, format))
    })
    .await?;
    let embeddings = answer.await.map_err(|_| ApiError::draining())??;
    drop(ticket);
    let model = state.served().name().to_owned();
    let answer = super::blocking(move || Ok(types::answer(model, embeddings, format))).await?;
    Ok(Json(answer).into_response())
}
