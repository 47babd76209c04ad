//! One request's tokens on their way out.

use crate::Fault;
use crate::beams::Beam;
use crate::mailbox::Shared;
use crate::progress::Progress;
use crate::trace::Trace;
use pelton_base::{FinishReason, RequestId, TokenId, Usage};
use pelton_sampling::{ScoredToken, TokenLogprobs};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;

/// One token of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct SampledToken {
    /// The token.
    pub token: TokenId,
    /// Its log probability under the model, if the request asked.
    pub logprobs: Option<TokenLogprobs>,
}

/// The news of one request after one step.
#[derive(Clone, Debug)]
pub struct TokenEvent {
    /// New tokens, in order; empty only in an event that ends the answer, and for a beam search.
    pub tokens: Vec<SampledToken>,
    /// The reason for which the answer ended; present in the last event only.
    pub finish: Option<FinishReason>,
    /// The failure of this answer alone, where it failed alone; `finish` is then
    /// [`FinishReason::Error`].
    pub fault: Option<Fault>,
    /// Tokens counted so far.
    pub usage: Usage,
    /// Start of the first step with a share of this request; `None` when there was none. Before it
    /// the request was waiting.
    pub started_at: Option<Instant>,
    /// End of the step that brought it.
    pub at: Instant,
    /// The answers of a beam search, the best first, in its last event.
    pub beams: Vec<Beam>,
    /// The tokens of the prompt but the first, in the first event with tokens of a request that asks
    /// for their scores ([`Extras::prompt_logprobs`](crate::Extras::prompt_logprobs)).
    pub prompt: Vec<ScoredToken>,
}

/// Sends the events of one request. They are boxed, because a channel has room for 32 of them from
/// the start, and a waiting request should take little memory.
pub(crate) type EventSender = mpsc::UnboundedSender<Box<TokenEvent>>;
/// Receives them.
pub(crate) type EventReceiver = mpsc::UnboundedReceiver<Box<TokenEvent>>;

/// The receiving end of one request. Dropping it aborts the request within one step.
///
/// Unless it is dropped before, a stream always ends with one event that has `finish`.
#[derive(Debug)]
#[must_use = "dropping a stream aborts its request"]
pub struct TokenStream {
    id: RequestId,
    events: EventReceiver,
    progress: Arc<Progress>,
    shared: Arc<Shared>,
    has_ended: bool,
}

impl TokenStream {
    pub(crate) fn new(
        id: RequestId,
        events: EventReceiver,
        progress: Arc<Progress>,
        shared: Arc<Shared>,
    ) -> Self {
        Self { id, events, progress, shared, has_ended: false }
    }

    /// Waits for the next event; `None` after the last. Safe to cancel.
    pub async fn recv(&mut self) -> Option<TokenEvent> {
        let event = self.events.recv().await;
        self.note(event)
    }

    /// Blocks the thread until the next event; `None` after the last.
    ///
    /// # Panics
    ///
    /// Panics when called from an async task.
    pub fn blocking_recv(&mut self) -> Option<TokenEvent> {
        let event = self.events.blocking_recv();
        self.note(event)
    }

    /// The name that the engine gave the request.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// Tokens of the prompt, from its first one, that were computed or cached when the latest step
    /// began. After a preemption it may be smaller than before.
    pub fn n_computed(&self) -> usize {
        self.progress.n_computed()
    }

    /// The steps of the request so far; empty for a beam search.
    pub fn trace(&self) -> Trace {
        self.progress.trace().clone()
    }

    fn note(&mut self, event: Option<Box<TokenEvent>>) -> Option<TokenEvent> {
        self.has_ended |= event.as_ref().is_none_or(|event| event.finish.is_some());
        event.map(|event| *event)
    }
}

impl Drop for TokenStream {
    fn drop(&mut self) {
        if !self.has_ended {
            self.shared.abort(self.id);
        }
    }
}
