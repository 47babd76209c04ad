//! Requests that were taken and have not ended, by id.
//!
//! Ids count upwards, so live requests lie in a moving window:
//!
//! ```text
//! ids      ... 14  15 [ 16  17   -  19   -  21 ]
//!                       └ first               └ the next is 22
//! ```
//!
//! A look-up is an index without hashing. The window spans all ids since the oldest live request,
//! which is about the length of the queue plus the running requests, unless the scheduler starves
//! one.

use crate::report::RequestRecord;
use crate::trace::{Text, TraceRequest};
use pelton_base::{FinishReason, RequestId, Slo, TokenId, Usage};
use std::collections::VecDeque;

/// One live request.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) request: TraceRequest,
    /// Its place in the trace.
    pub(super) number: u64,
    /// Its answer: a text, from a place on.
    answer: (Text, usize),
    /// Targets by which it is judged.
    slo: Slo,
    started_ns: Option<u64>,
    first_ns: Option<u64>,
    /// Tokens that have been computed at least once.
    n_computed: usize,
    gave_way: bool,
}

impl Live {
    pub(super) fn new(request: TraceRequest, number: u64, slo: Slo) -> Self {
        let answer = request.answer(number);
        Self {
            request,
            number,
            answer,
            slo,
            started_ns: None,
            first_ns: None,
            n_computed: 0,
            gave_way: false,
        }
    }

    /// The token that it answers after `n_generated` others.
    pub(super) fn answer_token(&self, n_generated: usize, vocab: u32) -> TokenId {
        let (text, place) = self.answer;
        text.token(place + n_generated, vocab)
    }

    /// Notes a share of a step that begins now; returns how many of its tokens were computed
    /// before.
    pub(super) fn start(&mut self, now_ns: u64, first_position: usize, n_tokens: usize) -> usize {
        self.started_ns.get_or_insert(now_ns);
        let end = first_position + n_tokens;
        let n_again = self.n_computed.min(end).saturating_sub(first_position);
        self.n_computed = self.n_computed.max(end);
        n_again
    }

    /// Notes that it was preempted.
    pub(super) fn give_way(&mut self) {
        self.gave_way = true;
    }

    /// Whether it was preempted since the last call.
    pub(super) fn comes_back(&mut self) -> bool {
        std::mem::take(&mut self.gave_way)
    }

    /// Notes that new tokens are there now.
    pub(super) fn receive(&mut self, now_ns: u64) {
        self.first_ns.get_or_insert(now_ns);
    }

    /// Its record, if it ends now.
    pub(super) fn end(self, now_ns: u64, finish: FinishReason, usage: Usage) -> RequestRecord {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let record = RequestRecord {
            tenant: self.request.tenant,
            n_prompt: count(usage.prompt_tokens),
            n_output: count(usage.completion_tokens),
            n_cached: count(usage.cached_tokens),
            arrived_ns: self.request.at_ns,
            started_ns: self.started_ns.unwrap_or(now_ns),
            first_ns: self.first_ns.unwrap_or(now_ns),
            ended_ns: now_ns,
            is_complete: finish == FinishReason::Length,
            is_good: false,
        };
        record.judged(&self.slo)
    }
}

/// All live requests.
#[derive(Debug, Default)]
pub(super) struct Window {
    first: u64,
    entries: VecDeque<Option<Live>>,
    n_live: usize,
}

impl Window {
    /// Adds a request and returns its id.
    pub(super) fn insert(&mut self, live: Live) -> RequestId {
        self.entries.push_back(Some(live));
        self.n_live += 1;
        RequestId(self.first + self.entries.len() as u64 - 1)
    }

    /// The request with this id.
    ///
    /// # Panics
    ///
    /// Panics if it is not live: the scheduler reported an unknown request.
    pub(super) fn get(&mut self, id: RequestId) -> &mut Live {
        let idx = id.0.checked_sub(self.first);
        let entry = idx.and_then(|idx| self.entries.get_mut(idx as usize));
        entry.and_then(Option::as_mut).unwrap_or_else(|| panic!("{id} is not at hand"))
    }

    /// Removes a request.
    ///
    /// # Panics
    ///
    /// Panics if it is not live.
    pub(super) fn remove(&mut self, id: RequestId) -> Live {
        self.get(id);
        let live = self.entries[(id.0 - self.first) as usize].take();
        while let Some(None) = self.entries.front() {
            self.entries.pop_front();
            self.first += 1;
        }
        self.n_live -= 1;
        live.expect("invariant: just looked up")
    }

    /// Number of live requests.
    pub(super) fn len(&self) -> usize {
        self.n_live
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_moves_with_the_oldest_and_keeps_every_name() {
        let mut window = Window::default();
        let live = |n_prompt| Live::new(TraceRequest::new(0, n_prompt, 1), 0, Slo::default());
        let ids: Vec<RequestId> = (1..=4).map(|n| window.insert(live(n))).collect();
        assert_eq!(ids, [0, 1, 2, 3].map(RequestId));
        assert_eq!(window.remove(ids[1]).request.n_prompt, 2);
        assert_eq!(window.get(ids[2]).request.n_prompt, 3);
        assert_eq!(window.remove(ids[0]).request.n_prompt, 1);
        assert_eq!((window.first, window.len()), (2, 2));
        assert_eq!(window.insert(live(5)), RequestId(4));
        assert_eq!(window.get(RequestId(4)).request.n_prompt, 5);
    }

    #[test]
    #[should_panic(expected = "req-0 is not at hand")]
    fn a_request_that_has_ended_is_not_at_hand() {
        let mut window = Window::default();
        let live = Live::new(TraceRequest::new(0, 1, 1), 0, Slo::default());
        let id = window.insert(live);
        window.remove(id);
        window.get(id);
    }

    #[test]
    fn tokens_computed_twice_are_counted_once_each_time() {
        let mut live = Live::new(TraceRequest::new(0, 10, 5), 0, Slo::default());
        assert_eq!(live.start(5, 0, 10), 0);
        assert_eq!(live.start(6, 10, 1), 0);
        // Preempted, and found four tokens in the cache.
        assert_eq!(live.start(7, 4, 8), 7);
        assert_eq!((live.n_computed, live.started_ns), (12, Some(5)));
    }
}
