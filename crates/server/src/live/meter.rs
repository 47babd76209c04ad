//! Rates and quantiles of the last minute, in fixed memory.

use std::collections::VecDeque;

use crate::outcome::Outcome;

/// Seconds that are kept, the present one included.
pub(super) const WINDOW_SECONDS: u64 = 60;
/// Seconds over which a rate is the mean.
pub(super) const RATE_SECONDS: u64 = 10;
/// One slot more than the window, for the present second.
const N_SLOTS: usize = WINDOW_SECONDS as usize + 1;
/// Ended requests that are kept for quantiles.
const MOST_RECENT: usize = 256;

/// A count per second of the last minute.
#[derive(Clone, Debug)]
pub(super) struct Meter {
    slots: [u32; N_SLOTS],
    /// The present second.
    second: u64,
}

impl Default for Meter {
    fn default() -> Self {
        Self { slots: [0; N_SLOTS], second: 0 }
    }
}

impl Meter {
    /// Counts `n` in this second.
    pub(super) fn add(&mut self, second: u64, n: usize) {
        self.advance(second);
        let slot = &mut self.slots[(self.second % N_SLOTS as u64) as usize];
        *slot = slot.saturating_add(u32::try_from(n).unwrap_or(u32::MAX));
    }

    /// Adds the counts of the complete seconds before this one to `sums`, the oldest first.
    pub(super) fn add_to(&self, second: u64, sums: &mut [u64; WINDOW_SECONDS as usize]) {
        for (back, sum) in (1..=WINDOW_SECONDS).rev().zip(sums) {
            let Some(asked) = second.checked_sub(back) else { continue };
            let is_kept = asked <= self.second && asked + N_SLOTS as u64 > self.second;
            if is_kept {
                *sum += u64::from(self.slots[(asked % N_SLOTS as u64) as usize]);
            }
        }
    }

    /// Empties the slots of the seconds in between.
    fn advance(&mut self, second: u64) {
        let n_new = second.saturating_sub(self.second).min(N_SLOTS as u64);
        // Time does not run backwards; a count of the past is one of now.
        self.second = self.second.max(second);
        for new in (self.second + 1 - n_new)..=self.second {
            self.slots[(new % N_SLOTS as u64) as usize] = 0;
        }
    }
}

/// Mean per second over the last complete seconds of a history; fewer after a start.
pub(super) fn rate(history: &[u64; WINDOW_SECONDS as usize], second: u64) -> f64 {
    let n = RATE_SECONDS.min(second).max(1);
    let last = &history[history.len() - n as usize..];
    last.iter().sum::<u64>() as f64 / n as f64
}

/// Times of one request that has ended, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Times {
    pub(crate) queue: Option<f32>,
    pub(crate) ttft: Option<f32>,
    pub(crate) tpot: Option<f32>,
    pub(crate) e2e: Option<f32>,
}

impl Times {
    pub(super) fn of(outcome: &Outcome<'_>) -> Self {
        let parts = outcome.parts();
        let short = |seconds: Option<f64>| seconds.map(|seconds| seconds as f32);
        Self {
            queue: short(parts.queue),
            ttft: short(parts.ttft),
            tpot: short(parts.tpot),
            e2e: Some(parts.whole as f32),
        }
    }
}

/// Times of the requests that ended last.
#[derive(Clone, Debug, Default)]
pub(super) struct Recent {
    /// With the second of their end.
    ended: VecDeque<(u64, Times)>,
}

impl Recent {
    pub(super) fn add(&mut self, second: u64, times: Times) {
        if self.ended.len() == MOST_RECENT {
            self.ended.pop_front();
        }
        self.ended.push_back((second, times));
    }

    /// Requests that ended within the window before `second`.
    pub(super) fn within(&self, second: u64) -> impl Iterator<Item = Times> + '_ {
        let since = second.saturating_sub(WINDOW_SECONDS);
        self.ended.iter().filter(move |(at, _)| *at >= since).map(|(_, times)| *times)
    }
}

/// Number of values and their quantiles, by nearest rank.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub(crate) struct Quantiles {
    pub(crate) n: u64,
    pub(crate) p50: f64,
    pub(crate) p95: f64,
    pub(crate) p99: f64,
}

impl Quantiles {
    /// `None` without values.
    pub(super) fn of(mut values: Vec<f32>) -> Option<Self> {
        values.sort_unstable_by(f32::total_cmp);
        let n = values.len();
        let rank = |percent: usize| Some(f64::from(*values.get((n * percent).div_ceil(100) - 1)?));
        if n == 0 {
            return None;
        }
        Some(Self { n: n as u64, p50: rank(50)?, p95: rank(95)?, p99: rank(99)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(meter: &Meter, second: u64) -> [u64; WINDOW_SECONDS as usize] {
        let mut sums = [0; WINDOW_SECONDS as usize];
        meter.add_to(second, &mut sums);
        sums
    }

    #[test]
    fn a_history_has_complete_seconds_the_latest_last() {
        let mut meter = Meter::default();
        for (second, n) in [(3, 1), (3, 2), (5, 7), (6, 9)] {
            meter.add(second, n);
        }
        let past = history(&meter, 6);
        assert_eq!(past[60 - 3..], [3, 0, 7], "second 6 is not complete");
        assert_eq!(past.iter().sum::<u64>(), 10);
        assert_eq!(history(&meter, 7)[59], 9);
    }

    #[test]
    fn what_is_older_than_the_window_is_forgotten() {
        let mut meter = Meter::default();
        meter.add(0, 5);
        assert_eq!(history(&meter, 60)[0], 5);
        assert_eq!(history(&meter, 61), [0; 60]);
        meter.add(61, 1);
        assert_eq!(history(&meter, 62)[59], 1, "the slot of second 0 was emptied");
        meter.add(100_000, 2);
        assert_eq!(history(&meter, 100_001)[59], 2);
        assert_eq!(history(&meter, 100_001).iter().sum::<u64>(), 2);
    }

    #[test]
    fn a_rate_is_the_mean_of_ten_seconds_or_of_all_that_passed() {
        let mut meter = Meter::default();
        for second in 0..20 {
            meter.add(second, 30);
        }
        meter.add(20, 1000);
        assert_eq!(rate(&history(&meter, 20), 20), 30.0);
        assert_eq!(rate(&history(&meter, 25), 25), (5 * 30 + 1000) as f64 / 10.0);
        let mut young = Meter::default();
        young.add(0, 8);
        assert_eq!(rate(&history(&young, 2), 2), 4.0);
        assert_eq!(rate(&history(&young, 0), 0), 0.0);
    }

    #[test]
    fn quantiles_are_values_that_were_seen() {
        let values = (1..=100).rev().map(|i| i as f32).collect();
        let Quantiles { n, p50, p95, p99 } = Quantiles::of(values).expect("some");
        assert_eq!((n, p50, p95, p99), (100, 50.0, 95.0, 99.0));
        let one = Quantiles::of(vec![7.0]).expect("one");
        assert_eq!((one.p50, one.p99), (7.0, 7.0));
        assert_eq!(Quantiles::of(Vec::new()), None);
    }

    #[test]
    fn ended_requests_leave_the_window_and_do_not_grow_without_bound() {
        let mut recent = Recent::default();
        for second in 0..1000 {
            recent.add(second, Times { e2e: Some(second as f32), ..Times::default() });
        }
        assert_eq!(recent.ended.len(), MOST_RECENT);
        assert_eq!(recent.within(1000).count(), 60);
        assert_eq!(recent.within(2000).count(), 0);
    }
}
