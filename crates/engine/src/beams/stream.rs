//! The answers of one beam search on their way out.

use crate::beams::Beam;
use crate::{Fault, TokenEvent, TokenStream};
use pelton_base::{FinishReason, RequestId, Usage};
use std::time::Instant;

/// The news of one beam search.
#[derive(Clone, Debug)]
pub enum BeamEvent {
    /// Every live beam has this many tokens.
    Grown {
        /// Tokens of each live beam.
        n_tokens: usize,
        /// End of the step that brought the last of them.
        at: Instant,
    },
    /// The search is over; the last event.
    Ended {
        /// The best answers, the best first; at most `n`, fewer where a rule allowed fewer. Where
        /// the search was ended early, the answers found by then.
        answers: Vec<Beam>,
        /// [`FinishReason::Error`] or [`FinishReason::Aborted`] where the search did not come to its
        /// end; `None` where it did.
        failure: Option<FinishReason>,
        /// The failure of this search alone, where it failed alone.
        fault: Option<Fault>,
        /// The prompt, counted once, and the tokens of the answers.
        usage: Usage,
        /// Start of the first step with a share of this search.
        started_at: Option<Instant>,
        /// End of the last step.
        at: Instant,
    },
}

/// The receiving end of one beam search. Dropping it aborts all of its beams within one step.
#[derive(Debug)]
#[must_use = "dropping a stream aborts its search"]
pub struct BeamStream(TokenStream);

impl BeamStream {
    pub(crate) fn new(events: TokenStream) -> Self {
        Self(events)
    }

    /// Waits for the next event; `None` after the last. Safe to cancel.
    pub async fn recv(&mut self) -> Option<BeamEvent> {
        self.0.recv().await.map(as_beams)
    }

    /// Blocks the thread until the next event; `None` after the last.
    ///
    /// # Panics
    ///
    /// Panics when called from an async task.
    pub fn blocking_recv(&mut self) -> Option<BeamEvent> {
        self.0.blocking_recv().map(as_beams)
    }

    /// The name that the engine gave the search.
    pub fn id(&self) -> RequestId {
        self.0.id()
    }

    /// Tokens of the prompt, from its first one, that were computed or cached when the latest step
    /// began.
    pub fn n_computed(&self) -> usize {
        self.0.n_computed()
    }
}

fn as_beams(event: TokenEvent) -> BeamEvent {
    let TokenEvent { finish, fault, usage, started_at, at, beams, .. } = event;
    match finish {
        None => BeamEvent::Grown { n_tokens: usage.completion_tokens, at },
        Some(how) => {
            let failure =
                Some(how).filter(|how| matches!(how, FinishReason::Aborted | FinishReason::Error));
            let completion_tokens = beams.iter().map(|beam| beam.tokens.len()).sum();
            let usage = Usage { completion_tokens, ..usage };
            BeamEvent::Ended { answers: beams, failure, fault, usage, started_at, at }
        }
    }
}
