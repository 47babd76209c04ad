//! Counts of speculation, and the time that it saved.
//!
//! ```text
//! saved  =  sum over verified rows of
//!             drafts that were right · a row's share of the predicted plain step
//!           - drafts · predicted time of one more row
//!         - time spent making drafts
//! ```
//!
//! A plain step of `n` rows brings `n` tokens, so a token that comes without one saves the `n`th
//! part of it: the sum is time of the machine, of the kind that the engine's own step time is, and
//! not the time that clients wait less (which is up to `n` times as much). It is an estimate: what
//! the plain step would have taken is the cost model's opinion, and only the drafts' time is
//! measured.

use pelton_sched::{StepCost, StepLoad};
use std::time::Duration;

/// Places that are counted apart.
pub const COUNTED_PLACES: usize = 16;

/// Counts of speculation, and the time that it saved.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SpecStats {
    /// Drafts verified.
    pub n_drafted: u64,
    /// Drafts that were right.
    pub n_accepted: u64,
    /// Drafts verified, by how many are before them on their path.
    pub drafted_at: [u64; COUNTED_PLACES],
    /// Drafts that were right, by how many are before them on their path.
    pub accepted_at: [u64; COUNTED_PLACES],
    /// Steps of single sequences that had drafts.
    pub n_verified_rows: u64,
    /// Time spent making drafts, in nanoseconds.
    pub draft_ns: u64,
    /// Time that the machine is estimated to have saved, in nanoseconds; negative where it lost
    /// some.
    pub saved_ns: i64,
    /// Failures of proposers.
    pub n_failures: u64,
    /// Tokens that a rule forced and that were computed together; not counted as drafts.
    pub n_forced: u64,
}

impl SpecStats {
    /// Mean number of new tokens of a sequence's step that had drafts; `None` before the first.
    pub fn tokens_per_step(&self) -> Option<f64> {
        let n_rows = self.n_verified_rows;
        (n_rows > 0).then(|| (n_rows + self.n_accepted) as f64 / n_rows as f64)
    }

    /// The counts between `before` and now.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let less = |now: [u64; COUNTED_PLACES], then: [u64; COUNTED_PLACES]| {
            std::array::from_fn(|place| now[place] - then[place])
        };
        Self {
            n_drafted: self.n_drafted - before.n_drafted,
            n_accepted: self.n_accepted - before.n_accepted,
            drafted_at: less(self.drafted_at, before.drafted_at),
            accepted_at: less(self.accepted_at, before.accepted_at),
            n_verified_rows: self.n_verified_rows - before.n_verified_rows,
            draft_ns: self.draft_ns - before.draft_ns,
            saved_ns: self.saved_ns - before.saved_ns,
            n_failures: self.n_failures - before.n_failures,
            n_forced: self.n_forced - before.n_forced,
        }
    }

    /// The sum of two counts.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let sum = |one: [u64; COUNTED_PLACES], other: [u64; COUNTED_PLACES]| {
            std::array::from_fn(|place| one[place] + other[place])
        };
        Self {
            n_drafted: self.n_drafted + other.n_drafted,
            n_accepted: self.n_accepted + other.n_accepted,
            drafted_at: sum(self.drafted_at, other.drafted_at),
            accepted_at: sum(self.accepted_at, other.accepted_at),
            n_verified_rows: self.n_verified_rows + other.n_verified_rows,
            draft_ns: self.draft_ns + other.draft_ns,
            saved_ns: self.saved_ns + other.saved_ns,
            n_failures: self.n_failures + other.n_failures,
            n_forced: self.n_forced + other.n_forced,
        }
    }

    /// Counts the time that making drafts took.
    pub(super) fn made(&mut self, elapsed: Duration) {
        let ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        self.draft_ns = self.draft_ns.saturating_add(ns);
        self.saved_ns = self.saved_ns.saturating_sub_unsigned(ns);
    }

    /// Counts the drafts of one sequence's step. `depths` has the number of drafts before each on
    /// its path; `n_accepted` of them were right; the first was at `position`.
    pub(super) fn verified(
        &mut self,
        depths: &[usize],
        n_accepted: usize,
        position: usize,
        plain: &PlainStep,
    ) {
        self.n_verified_rows += 1;
        self.n_drafted += depths.len() as u64;
        self.n_accepted += n_accepted as u64;
        for &depth in depths.iter().filter(|depth| **depth < COUNTED_PLACES) {
            self.drafted_at[depth] += 1;
        }
        for accepted in &mut self.accepted_at[..n_accepted.min(COUNTED_PLACES)] {
            *accepted += 1;
        }
        self.saved_ns = self.saved_ns.saturating_add(plain.saved_ns(depths, n_accepted, position));
    }
}

/// The current step without its drafts, for comparison.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PlainStep {
    cost: StepCost,
    /// A row's share of its time, in nanoseconds.
    row_ns: u64,
}

impl PlainStep {
    /// A step of this load for `n_rows` rows that generate.
    pub(super) fn new(load: &StepLoad, n_rows: usize, cost: &StepCost) -> Self {
        Self { cost: *cost, row_ns: cost.step_ns(load) / n_rows.max(1) as u64 }
    }

    /// Time saved by the drafts of a row, in nanoseconds.
    fn saved_ns(&self, depths: &[usize], n_accepted: usize, position: usize) -> i64 {
        let mut drafts = StepLoad::default();
        for depth in depths {
            drafts.add_rows(position + depth, 1, 1);
        }
        let base = self.cost.step_ns(&StepLoad::default());
        let lost = self.cost.step_ns(&drafts).saturating_sub(base);
        let won = self.row_ns.saturating_mul(n_accepted as u64);
        i64::try_from(won).unwrap_or(i64::MAX).saturating_sub_unsigned(lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_saves_its_steps_and_pays_for_its_drafts() {
        let cost = StepCost {
            base_ps: 900_000,
            token_ps: 40_000,
            sample_ps: 10_000,
            attended_ps: 1_000,
            ..StepCost::default()
        };
        let mut load = StepLoad::default();
        load.add_rows(99, 1, 1);
        load.add_rows(99, 1, 1);
        // 900 + 2 x (40 + 10) + 200 nanoseconds for two rows.
        let plain = PlainStep::new(&load, 2, &cost);
        let mut stats = SpecStats::default();
        stats.verified(&[0, 1, 2], 2, 99, &plain);
        // Two tokens of 600 for three rows of 50 that attend to 100, 101 and 102 tokens.
        assert_eq!(stats.saved_ns, 2 * 600 - 3 * 50 - 303);
        stats.made(Duration::from_nanos(47));
        assert_eq!((stats.saved_ns, stats.draft_ns), (700, 47));
        stats.verified(&[0], 0, 99, &plain);
        assert_eq!(stats.saved_ns, 550, "a wrong guess costs");
        assert_eq!(stats.tokens_per_step(), Some(2.0));
        let again = stats.and(&stats).and(&stats);
        assert_eq!(again.tokens_per_step(), Some(2.0), "six rows and six drafts");
        assert_eq!((stats.drafted_at[..4].to_vec(), stats.accepted_at[1]), (vec![2, 1, 1, 0], 1));
    }

    #[test]
    fn each_count_is_added_and_subtracted_by_itself() {
        let counts = |n: u64| SpecStats {
            n_drafted: n,
            n_accepted: 2 * n,
            drafted_at: std::array::from_fn(|place| n + place as u64),
            accepted_at: std::array::from_fn(|place| n * (1 + place as u64)),
            n_verified_rows: 3 * n,
            draft_ns: 4 * n,
            saved_ns: -5 * n as i64,
            n_failures: 6 * n,
            n_forced: 7 * n,
        };
        let sum = counts(10).and(&counts(3));
        let drafted_at = std::array::from_fn(|place| 13 + 2 * place as u64);
        assert_eq!(sum, SpecStats { drafted_at, ..counts(13) });
        assert_eq!(sum.since(&counts(3)), counts(10));
    }

    #[test]
    fn places_beyond_the_last_one_count_in_the_sums_alone() {
        let depths: Vec<usize> = (0..COUNTED_PLACES + 3).collect();
        let mut stats = SpecStats::default();
        stats.verified(&depths, depths.len(), 5, &PlainStep::default());
        assert_eq!(stats.n_drafted, depths.len() as u64);
        assert_eq!(stats.accepted_at, [1; COUNTED_PLACES]);
        assert_eq!(stats.since(&stats), SpecStats::default());
        assert_eq!(stats.and(&stats).since(&stats), stats);
    }
}
