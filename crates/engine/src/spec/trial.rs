//! Whether drafting pays at all, by the clock.
//!
//! [`lengths`](super::lengths) chooses by the price of a row. Prices leave out other costs of
//! drafting: the search for matches, the search for the likeliest tokens, a draft model that
//! catches up. So both ways are timed, with drafts and without, and the faster one is kept:
//!
//! ```text
//! drafting ─ 32 steps ─▶ plain ─ 12 steps ─▶ faster with drafts? ─ yes ─▶ drafting ─ 512 steps ─▶ plain ...
//!                                              └─ no ─▶ plain ─ 256, 512, .. 8192 steps ─▶ drafting ...
//! ```
//!
//! Trials are kept apart by the number of rows that generate (in powers of two) and for requests
//! that are bound to one method. Where drafting does not pay, the loss is a trial of 32 steps at
//! longer and longer intervals. Drafting that is less than half as fast ends after 8 steps. Only
//! steps without a prompt's chunk count. Old steps count less and less, and a step that took many
//! times as long as usual (the machine was busy elsewhere) counts at most three times the usual.

use std::collections::HashMap;
use std::time::Duration;

/// Steps of a trial with drafts.
const TRIAL: u32 = 32;
/// Steps without drafts that a trial is compared with.
const PLAIN: u32 = 12;
/// Steps that drafting is held for once it has proved faster.
const HOLD: u32 = 512;
/// Steps until it is tried again when it has not: the first and the longest time.
const WAIT: [u32; 2] = [256, 8192];
/// Weight of a block's figures when the next block of its kind begins.
const FADING: f64 = 0.25;

/// Steps after which drafting may end early.
const SOON: f64 = 8.0;
/// Part of the plain speed below which drafting ends early.
const FAR_BEHIND: f64 = 0.5;
/// Most that a step counts, as a multiple of the usual time.
const MOST_UNUSUAL: f64 = 3.0;

/// Tokens and time of steps of one kind.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    n_tokens: f64,
    ns: f64,
    /// Usual time of a step lately.
    usual_ns: f64,
}

impl Pace {
    fn add(&mut self, n_tokens: usize, elapsed: Duration) {
        let mut ns = elapsed.as_nanos() as f64;
        if self.usual_ns > 0.0 {
            ns = ns.min(MOST_UNUSUAL * self.usual_ns);
            self.usual_ns += 0.1 * (ns - self.usual_ns);
        } else {
            self.usual_ns = ns;
        }
        self.n_tokens += n_tokens as f64;
        self.ns += ns;
    }

    fn fade(&mut self) {
        self.n_tokens *= FADING;
        self.ns *= FADING;
    }

    fn is_faster(&self, other: &Self) -> bool {
        self.n_tokens * other.ns > other.n_tokens * self.ns
    }
}

/// The current block of steps, and the figures of both ways.
#[derive(Clone, Copy, Debug)]
struct Trial {
    drafts: bool,
    n_left: u32,
    /// Steps until the next trial, should this one fail.
    wait: u32,
    drafting: Pace,
    plain: Pace,
}

impl Default for Trial {
    fn default() -> Self {
        let (drafting, plain) = (Pace::default(), Pace::default());
        Self { drafts: true, n_left: TRIAL, wait: WAIT[0], drafting, plain }
    }
}

impl Trial {
    fn stepped(&mut self, n_tokens: usize, elapsed: Duration) {
        let pace = if self.drafts { &mut self.drafting } else { &mut self.plain };
        pace.add(n_tokens, elapsed);
        self.n_left -= 1;
        if self.n_left == 0 || self.is_far_behind() {
            self.turn();
        }
    }

    /// Whether drafting is slow enough, for long enough, to end early.
    fn is_far_behind(&self) -> bool {
        let Self { drafts, drafting, plain, .. } = self;
        *drafts
            && drafting.ns >= SOON * drafting.usual_ns
            && drafting.n_tokens * plain.ns < FAR_BEHIND * plain.n_tokens * drafting.ns
    }

    /// A block of steps has ended.
    fn turn(&mut self) {
        if self.drafts {
            self.drafts = false;
            self.n_left = PLAIN;
            self.plain.fade();
            return;
        }
        // After a long time without drafts there is nothing new to compare.
        let is_compared = self.drafting.ns > 0.0;
        self.drafts = !is_compared || self.drafting.is_faster(&self.plain);
        if !is_compared {
            self.n_left = TRIAL;
        } else if self.drafts {
            self.drafting.fade();
            (self.n_left, self.wait) = (HOLD, WAIT[0]);
        } else {
            self.drafting = Pace { n_tokens: 0.0, ns: 0.0, ..self.drafting };
            self.n_left = self.wait;
            self.wait = (2 * self.wait).min(WAIT[1]);
        }
    }
}

/// The kind of a step: the proposer that all its requests are bound to, if any, and their number as
/// a power of two.
pub(super) type Kind = (Option<usize>, u32);

/// The trials of all kinds of steps.
#[derive(Debug, Default)]
pub(super) struct Trials(HashMap<Kind, Trial>);

impl Trials {
    /// Whether a step of this kind should draft.
    pub(super) fn allow(&self, kind: Kind) -> bool {
        self.0.get(&kind).is_none_or(|trial| trial.drafts)
    }

    /// Counts a step of this kind that brought `n_tokens` tokens in the time `elapsed`.
    pub(super) fn stepped(&mut self, kind: Kind, n_tokens: usize, elapsed: Duration) {
        self.0.entry(kind).or_default().stepped(n_tokens, elapsed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Share of steps with drafts, and of time lost to it, when a drafting step brings so many
    /// tokens in so much time and a plain one a token in a microsecond.
    fn live(n_steps: u32, n_tokens: usize, ns: u64) -> (f64, f64) {
        let (mut trials, kind) = (Trials::default(), (None, 0));
        let (mut n_drafting, mut n_all, mut spent) = (0, 0, 0);
        for _ in 0..n_steps {
            let drafts = trials.allow(kind);
            let (tokens, ns) = if drafts { (n_tokens, ns) } else { (1, 1000) };
            trials.stepped(kind, tokens, Duration::from_nanos(ns));
            n_drafting += u32::from(drafts);
            n_all += tokens as u64;
            spent += ns;
        }
        let plain = n_all as f64 * 1000.0;
        (f64::from(n_drafting) / f64::from(n_steps), spent as f64 / plain - 1.0)
    }

    #[test]
    fn what_pays_is_held_and_what_does_not_is_let_be() {
        let (share, lost) = live(20_000, 2, 1500);
        assert!(share > 0.97 && lost < -0.2, "{share}, {lost}");
        let (share, lost) = live(20_000, 1, 1100);
        assert!(share < 0.02 && lost < 0.002, "{share}, {lost}");
        // Ten times as slow is soon found out too.
        let (_, lost) = live(20_000, 1, 10_000);
        assert!(lost < 0.1, "{lost}");
    }

    #[test]
    fn drafting_ends_early_where_it_brings_less_than_half_in_the_same_time() {
        let pace = |n_tokens, ns, usual_ns| Pace { n_tokens, ns, usual_ns };
        let plain = pace(100.0, 100_000.0, 1_000.0);
        for (ns, expected) in [(10_000.0, false), (19_000.0, false), (21_000.0, true)] {
            let drafting = pace(10.0, ns, 1_000.0);
            let trial = Trial { drafting, plain, ..Trial::default() };
            assert_eq!(trial.is_far_behind(), expected, "{ns} ns for ten tokens");
            assert!(!Trial { drafts: false, ..trial }.is_far_behind(), "it does not draft");
            let soon = Trial { drafting: pace(10.0, ns, ns), ..trial };
            assert!(!soon.is_far_behind(), "one step tells nothing");
        }
    }

    #[test]
    fn what_pays_later_is_found_later() {
        let (mut trials, kind) = (Trials::default(), (Some(1), 3));
        let mut n_drafting = 0;
        for i in 0..6000 {
            let drafts = trials.allow(kind);
            let pays = i > 2000;
            let tokens = if drafts && pays { 3 } else { 1 };
            let ns = if drafts { 1200 } else { 1000 };
            trials.stepped(kind, tokens, Duration::from_nanos(ns));
            n_drafting += u32::from(drafts && pays);
        }
        assert!(n_drafting > 1500, "{n_drafting}");
        assert!(trials.allow((Some(1), 4)), "another kind is untried");
    }
}
