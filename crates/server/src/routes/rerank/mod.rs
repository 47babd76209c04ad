//! `POST /v1/rerank`, `/rerank` and `/v2/rerank`: documents in the order in which they answer a query.

mod types;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use pelton_llm::{ScoreRequest, Scores};
use tokio::sync::oneshot;

use crate::error::ApiError;
use crate::models::Model;
use crate::state::{AppState, Running};
use crate::wire::Body;

pub(super) use types::RankUsage;
use types::{RerankBody, answer};

/// The shape of Jina and of Cohere's first version, which send documents back.
pub(crate) async fn handle(
    State(state): State<AppState>,
    running: Running,
    body: Body,
) -> Result<Response, ApiError> {
    rerank(&state, running, body, "1", true).await
}

/// Cohere's second version, which sends no documents back unless it is asked to.
pub(crate) async fn handle_v2(
    State(state): State<AppState>,
    running: Running,
    body: Body,
) -> Result<Response, ApiError> {
    rerank(&state, running, body, "2", false).await
}

/// Reads and checks a body, as far as it does not depend on the model.
pub(crate) fn parse(bytes: &[u8]) -> Result<ScoreRequest, ApiError> {
    Ok(RerankBody::read(bytes)?.request)
}

/// Reads a body as the handler does.
pub(crate) fn read_only(bytes: &[u8]) -> Result<(), ApiError> {
    RerankBody::read(bytes).map(drop)
}

async fn rerank(
    state: &AppState,
    running: Running,
    body: Body,
    version: &'static str,
    returns_documents: bool,
) -> Result<Response, ApiError> {
    let read = move |bytes: Vec<u8>| {
        let mut body = RerankBody::read(&bytes)?;
        Ok((body.model.take(), body))
    };
    let (model, scores, body) = scored(state, &running, body, read, |body| &body.request).await?;
    let name = model.name().to_owned();
    let answered = super::blocking(move || {
        let wanted = body.into_wanted(returns_documents);
        Ok(answer(name, scores, wanted, version))
    });
    Ok(Json(answered.await?).into_response())
}

/// Reads a body and computes the scores of its pairs.
///
/// When the client goes away this future is dropped, and with its ticket the request.
pub(super) async fn scored<T: Send + 'static>(
    state: &AppState,
    running: &Running,
    body: Body,
    read: impl FnOnce(Vec<u8>) -> Result<(Option<String>, T), ApiError> + Send + 'static,
    request: fn(&T) -> &ScoreRequest,
) -> Result<(Model, Scores, T), ApiError> {
    let (app, gate) = (state.clone(), running.ticket());
    let (send, answer) = oneshot::channel();
    let (ticket, model, body) = super::reading(state, body, move |bytes| {
        let (asked, body) = read(bytes)?;
        let model = app.model(asked.as_deref())?;
        let embedder = model.embedder()?;
        let prepared = embedder.prepare_scores(request(&body))?;
        gate.map_or(Ok(()), |gate| gate.reserve_prompt(prepared.n_tokens()))?;
        let ticket = embedder.submit_scores(prepared, move |scores| {
            // The client may have gone, and then the answer is dropped.
            let _ = send.send(scores);
        })?;
        Ok((ticket, model, body))
    })
    .await?;
    let scores = answer.await.map_err(|_| ApiError::draining())??;
    drop(ticket);
    running.used(model.name(), scores.n_tokens).await;
    Ok((model, scores, body))
}
