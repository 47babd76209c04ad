//! `POST /v1/classify` and `/classify`: the labels of texts.

mod types;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use tokio::sync::oneshot;

use crate::error::ApiError;
use crate::state::{AppState, Running};
use crate::wire::Body;
use types::{ClassifyBody, answer};

/// Reads a body as the handler does.
pub(crate) fn read_only(bytes: &[u8]) -> Result<(), ApiError> {
    ClassifyBody::read(bytes).map(drop)
}

/// Gives each text the probabilities of the model's labels.
///
/// When the client goes away this future is dropped, and with its ticket the request.
pub(crate) async fn handle(
    State(state): State<AppState>,
    running: Running,
    body: Body,
) -> Result<Response, ApiError> {
    let (app, gate) = (state.clone(), running.ticket());
    let (send, received) = oneshot::channel();
    let (ticket, model) = super::reading(&state, body, move |bytes| {
        let body = ClassifyBody::read(&bytes)?;
        drop(bytes);
        let model = app.model(body.model.as_deref())?;
        let embedder = model.embedder()?;
        let prepared = embedder.prepare_classes(body.inputs, body.truncate)?;
        gate.map_or(Ok(()), |gate| gate.reserve_prompt(prepared.n_tokens()))?;
        let ticket = embedder.submit_classes(prepared, move |classes| {
            // The client may have gone, and then the answer is dropped.
            let _ = send.send(classes);
        })?;
        Ok((ticket, model))
    })
    .await?;
    let classes = received.await.map_err(|_| ApiError::draining())??;
    drop(ticket);
    running.used(model.name(), classes.n_tokens.iter().sum()).await;
    let labels = &model.embedder()?.info().labels;
    Ok(Json(answer(model.name().to_owned(), labels, classes)).into_response())
}
