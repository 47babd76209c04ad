//! The requests of one tenant to one model: those under way, and how the last ones went.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pelton_base::{FinishReason, Usage};
use pelton_llm::Mix;

use super::meter::{Meter, Recent, Times, WINDOW_SECONDS};
use crate::metrics::{ENDINGS, ending};
use crate::outcome::Outcome;

/// Counts of the requests of one tenant to one model.
#[derive(Debug, Default)]
pub(crate) struct Scope(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    counts: Counts,
    requests: Meter,
    /// Requests that got their first token.
    begun: Meter,
    prompt: Meter,
    cached: Meter,
    generated: Meter,
    recent: Recent,
}

/// Plain counts.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Counts {
    /// Requests without a token so far: in the queue or in their prompt.
    pub(super) waiting: usize,
    /// Requests whose answers grow.
    pub(super) running: usize,
    /// Answers since the start, by [`ENDINGS`].
    pub(super) ended: [u64; 4],
    pub(super) prompt_tokens: u64,
    pub(super) cached_tokens: u64,
    pub(super) generated_tokens: u64,
}

/// Sums over several scopes.
#[derive(Debug, Default)]
pub(super) struct Sum {
    pub(super) counts: Counts,
    pub(super) requests: History,
    pub(super) begun: History,
    pub(super) prompt: History,
    pub(super) cached: History,
    pub(super) generated: History,
    pub(super) times: Vec<Times>,
}

impl Sum {
    /// Mean tokens of the requests of the window that got their first token.
    pub(super) fn mix(&self) -> Mix {
        let n_begun = self.begun.total().max(1) as f64;
        Mix {
            prompt_tokens: self.prompt.total() as f64 / n_begun,
            cached_tokens: self.cached.total() as f64 / n_begun,
            generated_tokens: self.generated.total() as f64 / n_begun,
        }
    }
}

/// A count for each complete second of the window, the oldest first.
#[derive(Clone, Copy, Debug)]
pub(super) struct History(pub(super) [u64; WINDOW_SECONDS as usize]);

impl Default for History {
    fn default() -> Self {
        Self([0; WINDOW_SECONDS as usize])
    }
}

impl History {
    pub(super) fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

impl Scope {
    /// Requests without a token so far.
    pub(super) fn waiting(&self) -> usize {
        self.lock().counts.waiting
    }

    /// Adds itself to a sum, as of this second.
    pub(super) fn add_to(&self, second: u64, sum: &mut Sum) {
        let state = self.lock();
        let (all, own) = (&mut sum.counts, &state.counts);
        all.waiting += own.waiting;
        all.running += own.running;
        for (all, own) in all.ended.iter_mut().zip(own.ended) {
            *all += own;
        }
        all.prompt_tokens += own.prompt_tokens;
        all.cached_tokens += own.cached_tokens;
        all.generated_tokens += own.generated_tokens;
        state.requests.add_to(second, &mut sum.requests.0);
        state.begun.add_to(second, &mut sum.begun.0);
        state.prompt.add_to(second, &mut sum.prompt.0);
        state.cached.add_to(second, &mut sum.cached.0);
        state.generated.add_to(second, &mut sum.generated.0);
        sum.times.extend(state.recent.within(second));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request under way, counted in its scope until it is dropped.
#[derive(Debug)]
pub(crate) struct Open {
    /// `None` where too many pairs of model and tenant have a scope already.
    scope: Option<Arc<Scope>>,
    /// Start of the server, from which seconds are counted.
    start: Instant,
    has_token: bool,
}

impl Open {
    pub(super) fn new(scope: Option<Arc<Scope>>, start: Instant) -> Self {
        let open = Self { scope, start, has_token: false };
        open.note(|state, second| {
            state.counts.waiting += 1;
            state.requests.add(second, 1);
        });
        open
    }

    /// `n` tokens were generated. At the first ones `usage` is asked for the prompt.
    pub(crate) fn tokens(&mut self, n: usize, usage: impl FnOnce() -> Usage) {
        if n == 0 {
            return;
        }
        let first = (!std::mem::replace(&mut self.has_token, true)).then(usage);
        self.note(|state, second| {
            if let Some(Usage { prompt_tokens, cached_tokens, .. }) = first {
                state.counts.waiting -= 1;
                state.counts.running += 1;
                state.counts.prompt_tokens += prompt_tokens as u64;
                state.counts.cached_tokens += cached_tokens as u64;
                state.begun.add(second, 1);
                state.prompt.add(second, prompt_tokens);
                state.cached.add(second, cached_tokens);
            }
            state.counts.generated_tokens += n as u64;
            state.generated.add(second, n);
        });
    }

    /// The request has ended. Answers that its client did not wait for count as aborted.
    pub(crate) fn ended(&self, outcome: &Outcome<'_>) {
        let &Outcome { reasons, n_choices, .. } = outcome;
        let n_open = n_choices.saturating_sub(reasons.len());
        let aborted = std::iter::repeat_n(FinishReason::Aborted, n_open);
        let times = Times::of(outcome);
        self.note(|state, second| {
            for reason in reasons.iter().copied().chain(aborted) {
                let place = ENDINGS.iter().position(|word| *word == ending(reason));
                state.counts.ended[place.unwrap_or(3)] += 1;
            }
            if outcome.is_whole() {
                state.recent.add(second, times);
            }
        });
    }

    fn note(&self, change: impl FnOnce(&mut State, u64)) {
        if let Some(scope) = &self.scope {
            change(&mut scope.lock(), self.start.elapsed().as_secs());
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let has_token = self.has_token;
        self.note(|state, _| match has_token {
            true => state.counts.running -= 1,
            false => state.counts.waiting -= 1,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_request_has_its_share_of_all_tokens_of_the_window() {
        let history = |first, last| {
            let mut history = History::default();
            (history.0[0], history.0[WINDOW_SECONDS as usize - 1]) = (first, last);
            history
        };
        let tokens = |prompt_tokens, cached_tokens, generated_tokens| Mix {
            prompt_tokens,
            cached_tokens,
            generated_tokens,
        };
        let mut sum = Sum::default();
        assert_eq!(sum.mix(), tokens(0.0, 0.0, 0.0), "no request at all");
        sum.begun = history(1, 3);
        (sum.prompt, sum.cached, sum.generated) = (history(10, 20), history(0, 6), history(7, 0));
        assert_eq!(sum.mix(), tokens(7.5, 1.5, 1.75));
    }
}
