//! Admission, decided when the tokens of a request are known and before the engine has it.
//!
//! A server that limits its clients cannot tell the length of a prompt before it is tokenized, and
//! must not wait until it runs. A [`Gatekeeper`] is asked in between.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::error::whole_seconds;
use crate::event::Event;

/// Decides whether requests may run, and knows answers of earlier ones.
pub trait Gatekeeper: fmt::Debug + Send + Sync {
    /// Tokens that each answer may have, from the least to the most that the request asks for.
    ///
    /// # Errors
    ///
    /// Why the request may not run now.
    fn admit(&self, asked: Asked) -> Result<u64, NotAdmitted>;

    /// Whether answers of this ticket may be recorded or replayed, so that a fingerprint is wanted.
    fn wants_fingerprint(&self, ticket: u64) -> bool;

    /// The events of an earlier request with the same fingerprint. Requests with equal fingerprints
    /// have equal answers: it covers every field that changes a token, the prompts and the model.
    fn recorded(&self, ticket: u64, fingerprint: [u8; 32]) -> Option<Arc<Vec<Event>>>;
}

/// The size of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Asked {
    /// The ticket of [`Service`](crate::Service).
    pub ticket: u64,
    /// Tokens of all prompts.
    pub prompt_tokens: u64,
    /// Answers to all prompts.
    pub n_answers: u64,
    /// Fewest tokens of an answer that the request will do with: the most where it states a length.
    pub least_answer_tokens: u64,
    /// Most tokens of an answer.
    pub most_answer_tokens: u64,
}

/// A request that a [`Gatekeeper`] turned away.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{why}")]
pub struct NotAdmitted {
    /// The reason, for people.
    pub why: String,
    /// The reason, for programs.
    pub code: &'static str,
    /// Time after which the request may be let in; `None` if it never will be.
    pub retry_after: Option<Duration>,
    /// Whether the server is at fault, and not the size or number of requests.
    pub is_fault: bool,
}

impl NotAdmitted {
    /// Whole seconds after which the request may be let in, at least one; `None` if it never will be.
    pub fn retry_after_seconds(&self) -> Option<u64> {
        self.retry_after.map(whole_seconds)
    }
}

/// A place for a gatekeeper, which comes after the model was loaded.
#[derive(Debug, Default)]
pub(crate) struct Gatehouse(OnceLock<Arc<dyn Gatekeeper>>);

impl Gatehouse {
    /// Places a gatekeeper, unless there is one.
    pub(crate) fn set(&self, keeper: &Arc<dyn Gatekeeper>) {
        self.0.get_or_init(|| Arc::clone(keeper));
    }

    /// The gatekeeper of a request that has a ticket.
    pub(crate) fn keeper(&self, ticket: u64) -> Option<&Arc<dyn Gatekeeper>> {
        self.0.get().filter(|_| ticket != 0)
    }
}
