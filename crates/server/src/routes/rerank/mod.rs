//! `POST /v1/rerank`, `/rerank` and `/v2/rerank`: documents in the order in which they answer a query.

mod types;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use pelton_llm::{EmbedTicket, Embedder, LlmError, PreparedScores, ScoreRequest, Scores};

use super::vectors::{Texts, answered};
use crate::error::ApiError;
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
    let read = |bytes: Vec<u8>| {
        let mut body = RerankBody::read(&bytes)?;
        Ok((body.model.take(), body))
    };
    let (model, scores, body) = answered(state, &running, body, read).await?;
    let name = model.name().to_owned();
    let answered = super::blocking(move || {
        let wanted = body.into_wanted(returns_documents);
        Ok(answer(name, scores, wanted, version))
    });
    Ok(Json(answered.await?).into_response())
}

/// A request for scores of pairs, in any shape.
pub(super) trait Pairs: Send + 'static {
    fn pairs(&self) -> &ScoreRequest;
}

impl Pairs for RerankBody {
    fn pairs(&self) -> &ScoreRequest {
        &self.request
    }
}

impl<T: Pairs> Texts for T {
    type Prepared = PreparedScores;
    type Answer = Scores;

    fn prepare(&self, model: &Embedder) -> Result<PreparedScores, LlmError> {
        model.prepare_scores(self.pairs())
    }

    fn n_tokens(prepared: &PreparedScores) -> usize {
        prepared.n_tokens()
    }

    fn submit(
        model: &Embedder,
        prepared: PreparedScores,
        reply: impl FnOnce(Result<Scores, LlmError>) + Send + 'static,
    ) -> Result<EmbedTicket, LlmError> {
        model.submit_scores(prepared, reply)
    }

    fn n_read(answer: &Scores) -> usize {
        answer.n_tokens
    }
}
