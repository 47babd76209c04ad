//! The best method and draft length for a batch size, from measured speeds and from the engine's
//! prices of steps.
//!
//! ```text
//! p(i)   share of the drafts at place i that were right, with all before them
//! q      share of a sequence's steps in which there was something to verify
//!
//! expected speed-up of up to k drafts for each of b sequences
//!          1 + q · (p(1) + ... + p(k))          tokens of a step of one sequence
//!        ----------------------------------
//!        1 + q · b · k · (row + draft) / plain   time of a step, in plain steps
//! ```
//!
//! The shares are those of the lengths that the engine chose, so they are a little kinder to long
//! drafts than forced ones would be: it drafts far where it is sure.

use pelton_engine::SpecStats;
use pelton_engine::spec::COUNTED_PLACES;
use pelton_sched::{StepCost, StepLoad};
use serde::Serialize;

use crate::samples::Summary;

/// Least measured gain that is worth a flag.
const LEAST_GAIN: f64 = 1.02;

/// Statistics of one method at one batch size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Evidence<'a> {
    pub(super) stats: &'a SpecStats,
    /// Steps of single sequences, those without drafts included.
    pub(super) n_row_steps: usize,
    pub(super) batch: usize,
    /// Tokens that a row attends to.
    pub(super) position: usize,
    pub(super) cost: &'a StepCost,
}

impl Evidence<'_> {
    /// Expected speed-up of up to `n_drafts` drafts; `None` where nothing was drafted or priced.
    pub(super) fn speedup(&self, n_drafts: usize) -> Option<f64> {
        let Self { stats, n_row_steps, batch, position, cost } = *self;
        if stats.n_drafted == 0 || n_row_steps == 0 || !cost.is_known() {
            return None;
        }
        let share = (stats.n_verified_rows as f64 / n_row_steps as f64).min(1.0);
        let mut load = StepLoad::default();
        let base = cost.step_ns(&load) as f64;
        load.add_rows(position, 1, 1);
        let row = cost.step_ns(&load) as f64 - base;
        let plain = base + row * batch as f64;
        let draft = stats.draft_ns as f64 / stats.n_drafted as f64;
        let n_drafts = n_drafts.min(COUNTED_PLACES);
        let places = stats.accepted_at.iter().zip(stats.drafted_at).take(n_drafts);
        let right: f64 = places.map(|(&right, all)| right as f64 / (all as f64).max(1.0)).sum();
        let rows = share * (batch * n_drafts) as f64;
        Some((1.0 + share * right) * plain / (plain + rows * (row + draft)))
    }

    /// The length of at most `most` drafts with the highest expected speed-up, and that speed-up.
    pub(super) fn best_length(&self, most: usize) -> Option<(usize, f64)> {
        let expected = |n| Some((n, self.speedup(n)?));
        (1..=most.min(COUNTED_PLACES)).filter_map(expected).max_by(|a, b| a.1.total_cmp(&b.1))
    }
}

/// One method at one batch size, over all texts.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Outcome {
    pub(super) method: &'static str,
    /// Speed over that of plain decoding in the same round.
    pub(super) ratio: Summary,
    /// The draft length with the highest speed-up by the prices, and that speed-up.
    pub(super) best_length: Option<(usize, f64)>,
}

/// The recommendation for one batch size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Advice {
    pub(super) batch: usize,
    /// `None` for plain decoding.
    pub(super) method: Option<&'static str>,
    pub(super) max_drafts: Option<usize>,
    /// By the prices.
    pub(super) expected: Option<f64>,
    /// The best measured speed-up, advised or not.
    pub(super) measured: Option<f64>,
    pub(super) text: String,
}

impl Advice {
    /// Judges the methods at a batch size.
    pub(super) fn new(batch: usize, outcomes: &[Outcome]) -> Self {
        let best = outcomes.iter().max_by(|a, b| a.ratio.median.total_cmp(&b.ratio.median));
        let measured = best.map(|best| best.ratio.median);
        // A gain outside of the confidence interval may be chance; one round has no interval.
        let is_sure = |ratio: &Summary| ratio.least_ratio().is_some_and(|least| least > 1.0);
        let pays = |best: &&Outcome| best.ratio.median >= LEAST_GAIN && is_sure(&best.ratio);
        let Some(best) = best.filter(pays) else {
            let seen = measured.map_or_else(String::new, |ratio| {
                format!(" (the best of the others came to {ratio:.2} times plain)")
            });
            let verdict = match measured {
                Some(ratio) if ratio >= LEAST_GAIN => {
                    "too few rounds, or too different ones: measure again, with more --rounds"
                }
                _ => "plain decoding is best here",
            };
            let text = format!("batch {batch}: {verdict}{seen}");
            return Self { batch, method: None, max_drafts: None, expected: None, measured, text };
        };
        let Summary { median, lowest, highest, .. } = best.ratio;
        let mut text = format!("batch {batch}: --spec {}", best.method);
        if let Some((length, _)) = best.best_length {
            text.push_str(&format!(" --spec-max {length}"));
        }
        text.push_str(&format!(": {median:.2} times plain ({lowest:.2}..{highest:.2}) measured"));
        if let Some((_, expected)) = best.best_length {
            text.push_str(&format!(", {expected:.2} expected by the price of its rows"));
        }
        let (max_drafts, expected) = best.best_length.unzip();
        Self { batch, method: Some(best.method), max_drafts, expected, measured, text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(n_rows: u64, right: &[u64], draft_ns: u64) -> SpecStats {
        let mut stats = SpecStats { n_verified_rows: n_rows, draft_ns, ..SpecStats::default() };
        for (place, &n_right) in right.iter().enumerate() {
            stats.drafted_at[place] = n_rows;
            stats.accepted_at[place] = n_right;
            stats.n_drafted += n_rows;
            stats.n_accepted += n_right;
        }
        stats
    }

    const COST: StepCost = StepCost {
        base_ps: 9_000_000,
        token_ps: 1_000_000,
        sample_ps: 0,
        attended_ps: 0,
        moved_block_ps: 0,
    };

    #[test]
    fn the_expected_speed_is_tokens_over_time() {
        let stats = stats(100, &[90, 80, 10], 0);
        let alone =
            Evidence { stats: &stats, n_row_steps: 100, batch: 1, position: 50, cost: &COST };
        let near = |found: Option<f64>, expected: f64| {
            assert!((found.expect("priced") - expected).abs() < 1e-9, "{found:?}, {expected}");
        };
        near(alone.speedup(1), 1.9 * 10.0 / 11.0);
        near(alone.speedup(2), 2.7 * 10.0 / 12.0);
        near(alone.speedup(3), 2.8 * 10.0 / 13.0);
        assert_eq!(alone.best_length(8).expect("priced").0, 2);
        assert_eq!(alone.best_length(1).expect("priced").0, 1);
        // Half of the steps had nothing to verify; eight rows pay for each other's drafts.
        let half = Evidence { n_row_steps: 200, ..alone };
        near(half.speedup(2), 1.85 * 10.0 / 11.0);
        let crowd = Evidence { batch: 8, ..alone };
        near(crowd.speedup(2), 2.7 * 17.0 / 33.0);
        assert!(crowd.best_length(8).expect("priced").1 < alone.best_length(8).expect("same").1);
        let unpriced = StepCost::default();
        assert_eq!(Evidence { cost: &unpriced, ..alone }.best_length(8), None);
    }

    #[test]
    fn time_for_drafts_counts() {
        let stats = stats(100, &[100], 100 * 9_000);
        let dear = Evidence { stats: &stats, n_row_steps: 100, batch: 1, position: 9, cost: &COST };
        let speedup = dear.speedup(1).expect("priced");
        assert!((speedup - 1.0).abs() < 1e-9, "a draft as dear as a step: {speedup}");
    }

    #[test]
    fn advice_follows_gains_outside_of_chance_alone() {
        let outcome = |method, rounds: &[f64]| Outcome {
            method,
            ratio: Summary::new(rounds.to_vec()).expect("rounds"),
            best_length: Some((4, 1.5)),
        };
        let advice =
            Advice::new(1, &[outcome("ngram", &[1.2, 1.3]), outcome("suffix", &[1.6, 1.7])]);
        assert_eq!((advice.method, advice.max_drafts), (Some("suffix"), Some(4)));
        assert!(advice.text.contains("--spec suffix --spec-max 4: 1.65 times"), "{}", advice.text);
        for rounds in [&[0.9, 1.6, 1.7][..], &[1.9], &[1.1, 1.9], &[1.01, 1.01], &[0.5, 0.6]] {
            let advice = Advice::new(8, &[outcome("suffix", rounds)]);
            assert_eq!((advice.method, advice.expected), (None, None), "{rounds:?}");
            let is_unsure = rounds.iter().any(|&ratio| ratio > 1.5);
            let plain = advice.text.contains("plain decoding is best here");
            assert!(plain != is_unsure, "{}", advice.text);
        }
        assert_eq!(Advice::new(8, &[]).measured, None, "Ctrl-C came first");
    }
}
