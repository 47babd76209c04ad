//! The time of one call: the median of rounds, and how far they lie apart.
//!
//! ```text
//! warm up, and double the calls of a round until it is long enough for the clock
//! rounds until the time is up, at least three      time of a round / its calls
//!
//!      |----|==|====M===|=======|-----------|      M: the median; the spread is the part that
//!          1/4          3/4                         lies between the quarters, over M
//! ```
//!
//! The median represents what a model will see; the best round would not. The ceilings are best
//! passes, so noise makes shares smaller and never larger.

use std::time::{Duration, Instant};

/// Shortest round, so that neither the clock nor one interrupt decides.
const ROUND: Duration = Duration::from_micros(200);
/// Fewest rounds.
const MIN_ROUNDS: usize = 3;
/// Most calls of a round.
const MAX_CALLS: u32 = 1 << 20;

/// The time of one call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Timing {
    /// Median over the rounds, in seconds.
    pub(super) seconds: f64,
    /// Distance between the quarters, in per cent of the median.
    pub(super) spread_percent: f64,
    /// Rounds that were timed.
    pub(super) n_rounds: usize,
}

impl Timing {
    /// Times `run` for about `seconds`; `None` if it was stopped before.
    pub(super) fn of(
        run: &mut dyn FnMut(),
        seconds: f64,
        is_stopped: &dyn Fn() -> bool,
    ) -> Option<Self> {
        let limit = Duration::from_secs_f64(seconds);
        let round = ROUND.min(limit / 8);
        let mut time_of = |n_calls: u32| {
            let start = Instant::now();
            (0..n_calls).for_each(|_| run());
            start.elapsed()
        };
        let mut n_calls = 1;
        time_of(n_calls);
        while time_of(n_calls) < round && n_calls < MAX_CALLS {
            n_calls *= 2;
        }
        let start = Instant::now();
        let mut rounds = Vec::new();
        while rounds.len() < MIN_ROUNDS || start.elapsed() < limit {
            if is_stopped() {
                return None;
            }
            rounds.push(time_of(n_calls).as_secs_f64() / f64::from(n_calls));
        }
        Some(Self::of_rounds(rounds))
    }

    /// Sums up at least one round; a clock that stood still counts as a nanosecond.
    fn of_rounds(mut rounds: Vec<f64>) -> Self {
        rounds.sort_by(f64::total_cmp);
        let n_rounds = rounds.len();
        let seconds = rounds[n_rounds / 2].max(1e-9);
        let between = rounds[n_rounds * 3 / 4] - rounds[n_rounds / 4];
        Self { seconds, spread_percent: 100.0 * between / seconds, n_rounds }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slow_round_moves_neither_median_nor_spread() {
        let timing = Timing::of_rounds(vec![5.0, 1.0, 4.0, 4.0, 1000.0, 4.0, 3.0, 4.0]);
        assert_eq!(timing, Timing { seconds: 4.0, spread_percent: 25.0, n_rounds: 8 });
        let single = Timing::of_rounds(vec![0.0]);
        assert_eq!(single, Timing { seconds: 1e-9, spread_percent: 0.0, n_rounds: 1 });
    }

    #[test]
    fn a_short_call_is_repeated_within_a_round_and_a_stop_ends_at_once() {
        let mut n_calls = 0_u64;
        let timing = Timing::of(&mut || n_calls += 1, 0.001, &|| false).expect("not stopped");
        assert!(timing.n_rounds >= MIN_ROUNDS && n_calls > 100, "{timing:?}, {n_calls} calls");
        assert_eq!(Timing::of(&mut || {}, 60.0, &|| true), None);
    }
}
