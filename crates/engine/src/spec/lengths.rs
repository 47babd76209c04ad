//! How many drafts a step should verify: as many as bring the most tokens per second.
//!
//! ```text
//! E = expected tokens of the step       at first one per row that generates
//! T = predicted time of the step        at first that of the plain step
//! draft by draft, the likeliest first:  p = probability that it and all before it are right
//!                                       c = price of one more row
//!     take it while p / c > E / T       then E += p, T += c
//! ```
//!
//! Taking the best ratio first and stopping where it no longer raises the average gives the largest
//! `E / T` that there is, for any mix of sequences; no drafts at all is one of the answers. Where
//! drafts are an investment ([`Offer::is_whole`]) they are one draft in this, with the sum of their
//! chances and of their costs.
//!
//! Papers: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", ICML 2023
//! (expected tokens); Liu et al., "Optimizing Speculative Decoding for Serving LLMs Using Goodput",
//! 2024 (length by load). The papers choose one length for all sequences, this one for each.

use pelton_sched::{StepCost, StepLoad};

/// The drafts that may be verified for one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'a> {
    /// Position of the first draft: tokens that each attends to.
    pub position: usize,
    /// Probability of each draft, in the order in which they are made, that it and all that it
    /// follows are right.
    pub chances: &'a [f32],
    /// Nanoseconds that making one takes.
    pub draft_ns: f64,
    /// Whether all are taken or none.
    pub is_whole: bool,
}

/// The part of an offer that is taken next.
struct Part {
    n_drafts: usize,
    chance: f64,
    ns: f64,
}

impl Offer<'_> {
    /// The part after `n_taken` drafts.
    fn part(&self, n_taken: usize, cost: &StepCost) -> Option<Part> {
        let rest = &self.chances[n_taken..];
        let n_drafts = if self.is_whole { rest.len() } else { rest.len().min(1) };
        let taken = rest[..n_drafts].iter().zip(self.position + n_taken..);
        let mut part = Part { n_drafts, chance: 0.0, ns: 0.0 };
        for (&chance, position) in taken {
            part.chance += f64::from(chance);
            part.ns += row_ns(cost, position) + self.draft_ns;
        }
        (n_drafts > 0).then_some(part)
    }
}

impl Part {
    fn gain(&self) -> f64 {
        self.chance / self.ns
    }
}

/// Chooses how many drafts of each offer to verify beside `load`, a row for each of `n_rows`, and
/// writes it to `lengths`; zero everywhere while nothing is priced.
pub fn choose(
    offers: &[Offer<'_>],
    load: &StepLoad,
    n_rows: usize,
    cost: &StepCost,
    lengths: &mut Vec<usize>,
) {
    lengths.clear();
    lengths.resize(offers.len(), 0);
    if !cost.is_known() || n_rows == 0 {
        return;
    }
    let mut expected = n_rows as f64;
    let mut time = cost.step_ns(load).max(1) as f64;
    // Of each sequence the next draft is the only one in question: the one after it is less likely.
    loop {
        let next = |i: usize| {
            let part = offers[i].part(lengths[i], cost)?;
            Some((part, i))
        };
        let parts = (0..offers.len()).filter_map(next);
        let best = parts.max_by(|(a, _), (b, _)| a.gain().total_cmp(&b.gain()));
        let Some((part, i)) = best else { return };
        if part.gain() <= expected / time {
            return;
        }
        expected += part.chance;
        time += part.ns;
        lengths[i] += part.n_drafts;
    }
}

/// Tokens per nanosecond that an offer would bring if its sequence were the only one of a step
/// whose other rows take the rest of `load`. Offers for one sequence are compared by it.
pub fn worth(offer: &Offer<'_>, load: &StepLoad, n_rows: usize, cost: &StepCost) -> f64 {
    let (mut expected, mut time) = (n_rows as f64, cost.step_ns(load).max(1) as f64);
    let mut n_taken = 0;
    while let Some(part) = offer.part(n_taken, cost) {
        if part.gain() <= expected / time {
            break;
        }
        expected += part.chance;
        time += part.ns;
        n_taken += part.n_drafts;
    }
    expected / time
}

/// Nanoseconds of one more row at `position`.
fn row_ns(cost: &StepCost, position: usize) -> f64 {
    let mut with = StepLoad::default();
    with.add_rows(position, 1, 1);
    let base = cost.step_ns(&StepLoad::default());
    (cost.step_ns(&with) - base).max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(n_drafts: i32, rate: f32) -> Vec<f32> {
        (1..=n_drafts).map(|i| rate.powi(i)).collect()
    }

    fn lengths(chains: &[Vec<f32>], cost: &StepCost) -> Vec<usize> {
        let offer = |chances| Offer { position: 100, chances, draft_ns: 0.0, is_whole: false };
        let offers: Vec<Offer<'_>> = chains.iter().map(|chain| offer(&chain[..])).collect();
        let mut load = StepLoad::default();
        for offer in &offers {
            load.add_rows(offer.position, 1, 1);
        }
        let mut lengths = Vec::new();
        choose(&offers, &load, offers.len(), cost, &mut lengths);
        lengths
    }

    const COST: StepCost = StepCost {
        base_ps: 18_000_000_000,
        token_ps: 1_300_000_000,
        sample_ps: 0,
        attended_ps: 0,
        moved_block_ps: 0,
    };

    #[test]
    fn the_choice_is_the_best_of_all_choices() {
        for rate in [0.05, 0.3, 0.5, 0.8, 0.95] {
            let chosen = lengths(&[chain(10, rate)], &COST)[0];
            // Tokens per nanosecond of each length, by the formula for expected tokens.
            let speed = |k: usize| {
                let expected: f64 = (0..=k).map(|i| f64::from(rate).powi(i as i32)).sum();
                expected / (18e6 + 1.3e6 * (k + 1) as f64)
            };
            let best = (0..=10).max_by(|&a, &b| speed(a).total_cmp(&speed(b))).expect("some");
            assert_eq!(chosen, best, "at rate {rate}");
        }
    }

    #[test]
    fn a_full_batch_drafts_less_and_where_it_pays_most() {
        let alone = lengths(&[chain(10, 0.7)], &COST)[0];
        let crowd = lengths(&vec![chain(10, 0.7); 64], &COST);
        assert!(crowd.iter().all(|&n| n < alone), "{crowd:?} against {alone}");
        let mixed = lengths(&[chain(10, 0.9), chain(10, 0.1)], &COST);
        assert!(mixed[0] > mixed[1], "{mixed:?}");
        assert_eq!(lengths(&[chain(10, 0.99)], &StepCost::default()), [0], "nothing is priced");
    }
    #[test]
    fn an_investment_is_made_as_a_whole_or_not_at_all() {
        let mut load = StepLoad::default();
        load.add_rows(100, 1, 1);
        let lengths = |chances: &[f32]| {
            let whole = Offer { position: 100, chances, draft_ns: 0.0, is_whole: true };
            let mut lengths = Vec::new();
            choose(&[whole], &load, 1, &COST, &mut lengths);
            let alone = 1.0 / COST.step_ns(&load) as f64;
            assert_eq!(lengths[0] > 0, worth(&whole, &load, 1, &COST) > alone);
            lengths[0]
        };
        // Two tokens for the price of ten rows, which is less than that of a step; then one.
        assert_eq!(lengths(&[0.2; 10]), 10);
        assert_eq!(lengths(&[0.02; 10]), 0);
        assert_eq!(lengths(&[&[0.0; 9][..], &[2.0]].concat()), 10, "the best may come last");
    }
}
