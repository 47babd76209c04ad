//! The price of a step: the measured model behind every decision by price.
//!
//! ```text
//! time = base + tokens · t + samples · s + attended · a + moved · m
//! ```
//!
//! A step reads the weights once (`base`), computes each token (`token`), the head of each row that
//! samples (`sample`), attends from each token to every one before it (`attended`), and copies KV
//! blocks between device and host (`moved`). The engine fits the five prices to the steps that it
//! measures; the scheduler only multiplies.
//!
//! **Architecture invariant:** prices are whole picoseconds, times whole nanoseconds: the same
//! calls give the same plans on every machine.

/// The work that a step asks of the machine.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct StepLoad {
    /// Tokens computed.
    pub n_tokens: u64,
    /// Rows whose logits are computed.
    pub n_samples: u64,
    /// Pairs of a token and one before it (or itself) that it attends to.
    pub n_attended: u64,
    /// KV blocks copied to or from the host.
    pub n_moved_blocks: u64,
}

impl StepLoad {
    /// Adds `n_tokens` tokens of one sequence that begin at `first_position`.
    pub fn add_rows(&mut self, first_position: usize, n_tokens: usize, n_samples: usize) {
        self.n_tokens += n_tokens as u64;
        self.n_samples += n_samples as u64;
        self.n_attended += attended(first_position, n_tokens);
    }
}

/// Pairs of `n_tokens` tokens that begin at `first_position` with all before them and themselves.
pub(crate) fn attended(first_position: usize, n_tokens: usize) -> u64 {
    let (first, n) = (first_position as u64, n_tokens as u64);
    n * first + n * (n + 1) / 2
}

/// Prices of a step's parts, in picoseconds. All zero while nothing was measured; no
/// decision is then taken by price.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct StepCost {
    /// A step of any size.
    pub base_ps: u64,
    /// A token.
    pub token_ps: u64,
    /// A row whose logits are computed.
    pub sample_ps: u64,
    /// A pair of a token and one that it attends to.
    pub attended_ps: u64,
    /// A KV block copied to or from the host.
    pub moved_block_ps: u64,
}

impl StepCost {
    /// Whether anything was measured.
    pub fn is_known(&self) -> bool {
        self.base_ps + self.token_ps > 0
    }

    /// The predicted time of a step, in nanoseconds.
    pub fn step_ns(&self, load: &StepLoad) -> u64 {
        (self.base_ps + self.marginal_ps(load)) / 1000
    }

    /// Time to compute `n_tokens` tokens from `first_position` in steps of `chunk`, alone on the
    /// machine, in nanoseconds.
    pub fn prefill_ns(&self, first_position: usize, n_tokens: usize, chunk: usize) -> u64 {
        let mut load = StepLoad::default();
        load.add_rows(first_position, n_tokens, usize::from(n_tokens > 0));
        let n_steps = n_tokens.div_ceil(chunk.max(1)) as u64;
        (self.base_ps.saturating_mul(n_steps).saturating_add(self.marginal_ps(&load))) / 1000
    }

    /// Most tokens from `first_position` on that add at most `budget_ns` to a step.
    pub fn tokens_within(&self, budget_ns: u64, first_position: usize, most: usize) -> usize {
        let budget_ps = budget_ns.saturating_mul(1000);
        let fits = |n: usize| {
            let pairs = attended(first_position, n).saturating_mul(self.attended_ps);
            (n as u64).saturating_mul(self.token_ps).saturating_add(pairs) <= budget_ps
        };
        let (mut low, mut high) = (0, most);
        while low < high {
            let middle = high - (high - low) / 2;
            if fits(middle) { low = middle } else { high = middle - 1 }
        }
        low
    }

    /// The price of a load in a step that happens anyway, in picoseconds.
    pub(crate) fn marginal_ps(&self, load: &StepLoad) -> u64 {
        let parts = [
            (load.n_tokens, self.token_ps),
            (load.n_samples, self.sample_ps),
            (load.n_attended, self.attended_ps),
            (load.n_moved_blocks, self.moved_block_ps),
        ];
        parts.iter().fold(0, |sum, &(n, price)| n.saturating_mul(price).saturating_add(sum))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COST: StepCost = StepCost {
        base_ps: 1_000_000,
        token_ps: 10_000,
        sample_ps: 5_000,
        attended_ps: 100,
        moved_block_ps: 2_000,
    };

    #[test]
    fn every_part_has_its_price() {
        let mut load = StepLoad { n_moved_blocks: 3, ..StepLoad::default() };
        load.add_rows(10, 2, 1);
        // 1,000 + 2 x 10 + 5 + (11 + 12) x 0.1 + 3 x 2 nanoseconds.
        assert_eq!(COST.step_ns(&load), 1_033);
    }

    #[test]
    fn the_most_tokens_within_a_budget_fit_and_one_more_does_not() {
        for (budget_ns, position) in [(0, 0), (15, 0), (1_000, 0), (1_000, 5_000), (1_000_000, 7)] {
            let n = COST.tokens_within(budget_ns, position, 4096);
            let time = |n| {
                let mut load = StepLoad::default();
                load.add_rows(position, n, 0);
                COST.marginal_ps(&load)
            };
            assert!(time(n) <= budget_ns * 1000);
            assert!(n == 4096 || time(n + 1) > budget_ns * 1000);
        }
    }

    #[test]
    fn a_token_attends_to_itself_and_to_all_before_it() {
        for (first, n_tokens) in [(0, 0), (0, 1), (0, 5), (3, 5), (7, 1), (100, 16)] {
            let pairs = (first..first + n_tokens).map(|position| position as u64 + 1).sum::<u64>();
            assert_eq!(attended(first, n_tokens), pairs, "{n_tokens} tokens from {first}");
        }
    }

    #[test]
    fn a_prompt_takes_a_base_for_each_chunk_and_samples_once() {
        assert_eq!(COST.prefill_ns(100, 0, 2), 0);
        // 3 x 1,000 + 5 x 10 + 5 + (11 + 12 + 13 + 14 + 15) x 0.1 nanoseconds.
        assert_eq!(COST.prefill_ns(10, 5, 2), 3_061);
        assert_eq!(COST.prefill_ns(10, 5, 5), 1_061);
    }
}
