//! The tokens and the time that a step may take.

use crate::{SchedulerConfig, StepCost, StepLoad};

/// Prefill tokens of a step beside generating requests while no price is known.
const FIRST_TOKENS: usize = 32;

/// The rest of a step's budget while its plan is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// Tokens.
    pub(crate) n_tokens: usize,
    /// Nanoseconds for prefill chunks, where the time of the step is bounded and prices are known.
    time_ns: Option<u64>,
    /// Whether a chunk was given out already.
    has_chunk: bool,
    cost: StepCost,
}

impl Budget {
    pub(crate) fn new(n_tokens: usize, cost: StepCost) -> Self {
        Self { n_tokens, time_ns: None, has_chunk: false, cost }
    }

    /// Bounds the prefill chunks by twice the tokens of the largest step that prices were learned
    /// from, so that a wrong price costs little.
    pub(crate) fn try_out(&mut self, n_tried_tokens: usize) {
        self.n_tokens = self.n_tokens.min(n_tried_tokens.saturating_mul(2).max(FIRST_TOKENS));
    }

    /// Bounds the prefill chunks by the part of `allowance_ns` that `load` leaves.
    pub(crate) fn allow(&mut self, allowance_ns: u64, load: &StepLoad) {
        if self.cost.is_known() {
            self.time_ns = Some(allowance_ns.saturating_sub(self.cost.step_ns(load)));
        }
    }

    /// Takes a chunk of `n_remaining` tokens that begin at `position`, the first `n_together` of which
    /// are computed in one step or not at all.
    ///
    /// The first chunk of a step has these whatever its budget is, because a source cannot be cut.
    ///
    /// The first chunk of a step has at least one token, and a quarter of a block where the decode
    /// rows alone take longer than their target: otherwise prompts would starve beside a target
    /// that cannot be met.
    pub(crate) fn take_chunk(
        &mut self,
        position: usize,
        (n_remaining, n_together): (usize, usize),
        config: &SchedulerConfig,
    ) -> usize {
        let most = n_remaining.min(self.n_tokens).min(config.choices.chunk_tokens());
        let n_tokens = match self.time_ns {
            None => most,
            Some(time_ns) => {
                let least = match (self.has_chunk, time_ns) {
                    (true, _) => 0,
                    (false, 0) => (config.block_size / 4).max(1),
                    (false, _) => 1,
                };
                self.cost.tokens_within(time_ns, position, most).max(least.min(most))
            }
        };
        let n_tokens = match n_tokens < n_together {
            true if self.has_chunk => 0,
            true => n_together,
            false => n_tokens,
        };
        if n_tokens > 0 {
            self.has_chunk = true;
            self.n_tokens = self.n_tokens.saturating_sub(n_tokens);
            if let Some(time_ns) = &mut self.time_ns {
                let mut load = StepLoad::default();
                load.add_rows(position, n_tokens, usize::from(n_tokens == n_remaining));
                *time_ns = time_ns.saturating_sub(self.cost.marginal_ps(&load) / 1000);
            }
        }
        n_tokens
    }

    /// Whether nothing more fits.
    pub(crate) fn is_spent(&self) -> bool {
        self.n_tokens == 0 || (self.has_chunk && self.time_ns == Some(0))
    }
}
