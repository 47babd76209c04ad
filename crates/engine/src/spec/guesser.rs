//! One proposer, the border around it, and how often its drafts were right.

use super::acceptance::Acceptance;
use super::{Abilities, Odds, Proposer, Row, Seen};
use crate::guard;
use pelton_base::{Request, RequestId};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Probability that the first draft of a proposer is right, before any was seen.
const PRIOR: f32 = 0.5;
/// Drafts of an investment that are expected to be right, before any was seen.
const PRIOR_OF_WHOLE: f32 = 1.0;
/// Matches of 1, 2 to 3, 4 to 7, ... tokens are judged apart.
const N_SURE: usize = 6;
/// Failures in a row after which a proposer is no longer asked.
const MOST_FAILURES: u32 = 3;

/// A proposer and its record.
///
/// Proposers are shared by all requests, so one that panics is never called again: its state may be
/// half changed. Drafting goes on without it, and tokens stay the same.
#[derive(Debug)]
pub(super) struct Guesser {
    name: &'static str,
    abilities: Abilities,
    proposer: Box<dyn Proposer>,
    has_panicked: bool,
    /// Outcomes by the class of the match, over all requests.
    experience: [Acceptance; N_SURE],
    /// Outcomes of each request alone, by the class of the match.
    sequences: HashMap<RequestId, [Acceptance; N_SURE]>,
    /// Mean time of a draft, in nanoseconds.
    draft_ns: f64,
    n_failures_in_a_row: u32,
}

/// The drafts that a guesser made for some rows.
pub(super) struct Made {
    /// Time that making them took.
    pub(super) elapsed: Duration,
    /// Whether the proposer failed or panicked, and no row has drafts.
    pub(super) has_failed: bool,
}

impl Guesser {
    pub(super) fn new(proposer: Box<dyn Proposer>) -> Self {
        Self {
            name: proposer.name(),
            abilities: proposer.abilities(),
            proposer,
            has_panicked: false,
            experience: Default::default(),
            sequences: HashMap::new(),
            draft_ns: 0.0,
            n_failures_in_a_row: 0,
        }
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn abilities(&self) -> Abilities {
        self.abilities
    }

    /// Mean time of a draft, in nanoseconds.
    pub(super) fn draft_ns(&self) -> f64 {
        self.draft_ns
    }

    pub(super) fn has_given_up(&self) -> bool {
        self.has_panicked || self.n_failures_in_a_row >= MOST_FAILURES
    }

    /// Calls the proposer; `None` when it panics, or has panicked before.
    fn call<T>(&mut self, method: impl FnOnce(&mut dyn Proposer) -> T) -> Option<T> {
        if self.has_panicked {
            return None;
        }
        let outcome = guard("a proposer", || method(&mut *self.proposer));
        if outcome.is_err() {
            self.has_panicked = true;
            tracing::warn!(proposer = self.name, "the proposer is off; decoding goes on without");
        }
        outcome.ok()
    }

    /// Meets a request; `false` when the proposer panics.
    pub(super) fn add(&mut self, request: &Request) -> bool {
        self.sequences.insert(request.id, Default::default());
        self.has_panicked || self.call(|proposer| proposer.add(request)).is_some()
    }

    /// Forgets a request; `false` when the proposer panics.
    pub(super) fn finished(&mut self, id: RequestId) -> bool {
        self.sequences.remove(&id);
        self.has_panicked || self.call(|proposer| proposer.finished(id)).is_some()
    }

    /// Drafts that it could make for a row, at most `most`, and the class of the match they rest
    /// on; `None` when the proposer panics.
    pub(super) fn look(&mut self, row: &Row<'_>, most: usize) -> Option<(usize, usize)> {
        if self.has_panicked {
            return Some((0, 0));
        }
        let (n_drafts, n_matched) = self.call(|proposer| proposer.look(row, most))?;
        Some((n_drafts, sure(n_matched)))
    }

    /// Makes drafts for some rows, at most as many for each as it asks for.
    pub(super) fn propose(&mut self, rows: &mut [Row<'_>], mut odds: Option<&mut Odds>) -> Made {
        let started = Instant::now();
        let made = self.call(|proposer| {
            let catches_up = rows.iter().any(|row| proposer.is_catching_up(row));
            proposer.propose(rows, odds.as_deref_mut()).map(|()| catches_up)
        });
        let elapsed = started.elapsed();
        let Some(Ok(catches_up)) = made else {
            if let Some(Err(error)) = made {
                self.n_failures_in_a_row += 1;
                let gives_up = self.has_given_up();
                tracing::warn!(%error, gives_up, "decoding goes on without drafts");
            }
            for row in rows {
                row.drafts.clear();
                if let Some(odds) = odds.as_deref_mut() {
                    odds.finished(row.id);
                }
            }
            return Made { elapsed, has_failed: true };
        };
        self.n_failures_in_a_row = 0;
        let mut n_drafts = 0;
        for row in rows {
            row.drafts.truncate(row.n_drafts);
            n_drafts += row.drafts.len();
        }
        if !catches_up {
            self.count(n_drafts, elapsed);
        }
        Made { elapsed, has_failed: false }
    }

    /// Sees the outcome of a share; `false` when the proposer panics.
    pub(super) fn observe(&mut self, seen: &Seen<'_>) -> bool {
        self.has_panicked || self.call(|proposer| proposer.observe(seen)).is_some()
    }

    /// Probability of each of `n_drafts` drafts that it and all that it follows are right, after a
    /// match of the class `sure`.
    pub(super) fn chances(
        &self,
        id: RequestId,
        sure: usize,
        n_drafts: usize,
        chances: &mut Vec<f32>,
    ) {
        let own = self.sequences.get(&id).map(|own| own[sure]).unwrap_or_default();
        if self.abilities.invests_for.is_some() {
            let n_right = own.at(0, self.experience[sure].at(0, PRIOR_OF_WHOLE));
            chances.extend(std::iter::repeat_n(n_right / n_drafts as f32, n_drafts));
            return;
        }
        let branches = self.abilities.branches;
        let mut path = 1.0;
        for place in 0..n_drafts {
            // In a tree, later drafts are there in case the earlier ones are wrong.
            let prior = if branches { PRIOR / (place + 1) as f32 } else { PRIOR };
            let rate = own.at(place, self.experience[sure].at(place, prior));
            path *= rate;
            chances.push(if branches { rate } else { path });
        }
    }

    /// Learns that of its drafts for a request those in the `accepted` rows were right.
    pub(super) fn learn(
        &mut self,
        id: RequestId,
        sure: usize,
        n_drafts: usize,
        accepted: &[usize],
    ) {
        let own = self.sequences.get_mut(&id).map(|own| &mut own[sure]);
        let judges = [own, Some(&mut self.experience[sure])];
        for acceptance in judges.into_iter().flatten() {
            match (self.abilities.invests_for, self.abilities.branches) {
                (Some(_), _) => acceptance.saw_whole(accepted.len()),
                (None, true) => acceptance.saw_tree(n_drafts, accepted),
                (None, false) => acceptance.saw_chain(n_drafts, accepted.len()),
            }
        }
    }

    /// Learns that `n_drafts` drafts took `elapsed` to make.
    pub(super) fn count(&mut self, n_drafts: usize, elapsed: Duration) {
        if n_drafts > 0 {
            let each = elapsed.as_nanos() as f64 / n_drafts as f64;
            self.draft_ns += 0.1 * (each - self.draft_ns);
        }
    }
}

/// The class of a match of this many tokens.
fn sure(n_matched: usize) -> usize {
    (n_matched.max(1).ilog2() as usize).min(N_SURE - 1)
}

#[cfg(test)]
mod tests {
    use super::super::Suffix;
    use super::super::tests::request;
    use super::*;

    #[test]
    fn wrong_short_matches_say_nothing_of_long_ones() {
        let mut guesser = Guesser::new(Box::new(Suffix::default()));
        let asked = request(&[1]);
        guesser.add(&asked);
        for _ in 0..20 {
            guesser.learn(asked.id, 0, 3, &[]);
            guesser.learn(asked.id, 4, 3, &[1, 2, 3]);
        }
        let chances = |sure| {
            let mut chances = Vec::new();
            guesser.chances(asked.id, sure, 3, &mut chances);
            chances
        };
        assert!(chances(0)[0] < 0.1, "{:?}", chances(0));
        assert!(chances(4)[2] > 0.7, "{:?}", chances(4));
    }

    #[test]
    fn the_price_of_a_draft_follows_its_time_slowly() {
        let mut guesser = Guesser::new(Box::new(Suffix::default()));
        guesser.draft_ns = 1_000.0;
        guesser.count(0, Duration::from_secs(1));
        assert_eq!(guesser.draft_ns, 1_000.0, "no drafts have no price");
        guesser.count(4, Duration::from_nanos(8_000));
        assert_eq!(guesser.draft_ns, 1_100.0, "a tenth of the way to 2,000");
        (0..200).for_each(|_| guesser.count(1, Duration::from_nanos(500)));
        assert!((guesser.draft_ns - 500.0).abs() < 1.0, "{}", guesser.draft_ns);
    }
}
