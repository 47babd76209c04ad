//! The way back from the loop to the client of a request.

use crate::progress::Progress;
use crate::stream::EventSender;
use crate::{Fault, MarkKind, SampledToken, TokenEvent};
use pelton_base::{FinishReason, RequestId, TokenId, Usage};
use pelton_sampling::TokenLogprobs;
use pelton_sched::{ScheduledSequence, Tick};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Least time between two lines in the log on the progress of a prompt.
const LOG_INTERVAL: Duration = Duration::from_secs(2);

/// The way back to the client of one request.
pub(super) struct Route {
    pub(super) events: EventSender,
    pub(super) n_prompt: usize,
    pub(super) usage: Usage,
    pub(super) submitted_at: Tick,
    /// Time of its last token.
    pub(super) token_at: Option<Tick>,
    /// Start of the first step with a share of it.
    pub(super) started_at: Option<Instant>,
    /// For the client.
    pub(super) progress: Arc<Progress>,
    /// Time of the last line in the log on the progress of its prompt.
    pub(super) logged_at: Option<Instant>,
}

impl Route {
    /// Notes a step in the timeline of the request.
    pub(super) fn note(&self, share: &ScheduledSequence, at: Instant) {
        self.progress.trace().step(kind_of(share), at, share.tokens.len(), share.n_drafts);
    }

    /// Notes that a step computes `n_rows` of the prompt's tokens, from `n_computed` on.
    pub(super) fn progress(
        &mut self,
        id: RequestId,
        n_computed: usize,
        n_rows: usize,
        now: Instant,
    ) {
        self.progress.compute(n_computed);
        let since = self.logged_at.or(self.started_at).unwrap_or(now);
        if n_computed + n_rows < self.n_prompt && now - since >= LOG_INTERVAL {
            self.logged_at = Some(now);
            tracing::info!("request {id}: {n_computed} of {} prompt tokens", self.n_prompt);
        }
    }
}

/// Whether a share goes on with an answer or computes tokens that are known.
fn kind_of(share: &ScheduledSequence) -> MarkKind {
    // A row of its own that is sampled goes on with the answer; drafts may stand after it.
    let n_known = share.tokens.len() - share.n_drafts;
    let is_decode = share.samples && n_known == 1 && share.n_generated > 0;
    if is_decode { MarkKind::Decode } else { MarkKind::Prefill }
}

/// Pairs tokens with their log probabilities, which are absent where the request did not ask.
pub(super) fn sampled_tokens(
    tokens: &[TokenId],
    logprobs: Vec<TokenLogprobs>,
) -> Vec<SampledToken> {
    let mut logprobs = logprobs.into_iter();
    let with_logprobs = |&token| SampledToken { token, logprobs: logprobs.next() };
    tokens.iter().map(with_logprobs).collect()
}

/// Sends the last event of a request, which brings no token.
pub(super) fn end(
    events: &EventSender,
    how: FinishReason,
    fault: Option<Fault>,
    usage: Usage,
    started_at: Option<Instant>,
) {
    let (tokens, finish, at) = (Vec::new(), Some(how), Instant::now());
    let (beams, prompt) = (Vec::new(), Vec::new());
    send(events, TokenEvent { tokens, finish, fault, usage, started_at, at, beams, prompt });
}

/// Sends an event. A stream that was dropped has aborted its request by mail, so an error is no
/// news.
pub(super) fn send(events: &EventSender, event: TokenEvent) {
    let _ = events.send(Box::new(event));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_is_computed_anew_after_a_preemption_is_prefill() {
        let kind = |n_rows, n_drafts, samples, n_generated| {
            kind_of(&ScheduledSequence {
                id: RequestId(1),
                tokens: 0..n_rows,
                parents: 0..0,
                first_position: 0,
                blocks: 0..1,
                samples,
                n_drafts,
                n_source: 0,
                n_generated,
                lane: None,
            })
        };
        assert_eq!(kind(1, 0, true, 1), MarkKind::Decode);
        assert_eq!(kind(5, 4, true, 7), MarkKind::Decode, "a row and four drafts");
        assert_eq!(kind(5, 0, true, 7), MarkKind::Prefill, "known tokens of the answer");
        assert_eq!(kind(1, 0, false, 7), MarkKind::Prefill, "one of them, and not the last");
        assert_eq!(kind(1, 0, true, 0), MarkKind::Prefill, "a prompt of one token");
    }
}
