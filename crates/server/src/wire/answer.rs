//! Common parts of the answers of all generating endpoints.

use pelton_base::FinishReason;
use pelton_llm::Finish;

use super::{Shown, StreamOptions, fresh_id, unix_seconds};
use crate::error::ApiError;
use crate::models::Model;

/// Format of an answer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ask {
    /// `None` for an answer in one piece.
    pub(crate) stream: Option<StreamOptions>,
    /// Whether log probabilities are reported.
    pub(crate) logprobs: bool,
    /// Whether thoughts are left out.
    pub(crate) hides_thoughts: bool,
    /// Parts beside the text.
    pub(crate) shown: Shown,
}

/// Fields that every piece of an answer begins with.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) id: String,
    /// Seconds since 1970.
    pub(crate) created: u64,
    pub(crate) model: String,
}

impl Head {
    /// The head of a new answer, whose id begins with `prefix`.
    pub(crate) fn new(model: &Model, prefix: &str) -> Self {
        let model = model.name().to_owned();
        Self { id: fresh_id(prefix), created: unix_seconds(), model }
    }

    /// The same with an id that the client chose.
    pub(crate) fn named(self, prefix: &str, request_id: Option<String>) -> Self {
        let id = request_id.map_or(self.id, |id| format!("{prefix}{id}"));
        Self { id, ..self }
    }
}

/// The finish reason for clients; an answer that failed has none.
pub(crate) fn finish_reason(finish: &Finish) -> Result<&'static str, ApiError> {
    match finish.reason {
        FinishReason::Stop => Ok("stop"),
        FinishReason::Length => Ok("length"),
        _ => Err(ApiError::unfinished(finish)),
    }
}
