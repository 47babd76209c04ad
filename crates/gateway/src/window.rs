//! How much happened within the last minute.
//!
//! ```text
//!   second   s-60  s-59   ..    s-1    s
//!          ┌──────┬──────┬────┬──────┬──────┐
//!          │  3   │  0   │ .. │  7   │  1   │   sum over 61 seconds
//!          └──────┴──────┴────┴──────┴──────┘
//! ```
//!
//! A sliding window of whole seconds. The oldest second lies partly outside of the last 60 seconds
//! and counts in full, so no 60 seconds, wherever they begin, hold more than the sum allowed.
//! A token bucket would need less memory, but lets twice its size through within a minute.

use std::time::Duration;

const SECONDS: u64 = 61;

/// Amounts of the last 61 seconds.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    /// Amount of the second `s` at `s % 61`.
    slots: Box<[u64; SECONDS as usize]>,
    sum: u64,
    /// The latest second that was seen.
    second: u64,
}

impl Default for Window {
    fn default() -> Self {
        Self { slots: Box::new([0; SECONDS as usize]), sum: 0, second: 0 }
    }
}

impl Window {
    /// Adds an amount at this time; an earlier time than the latest counts as the latest.
    pub(crate) fn add(&mut self, at: Duration, amount: u64) {
        self.advance(at);
        let slot = &mut self.slots[(self.second % SECONDS) as usize];
        *slot = slot.saturating_add(amount);
        self.sum = self.sum.saturating_add(amount);
    }

    /// The amount that still counts at this time.
    pub(crate) fn sum(&mut self, at: Duration) -> u64 {
        self.advance(at);
        self.sum
    }

    /// Time until at most `most` counts, if nothing is added.
    pub(crate) fn until(&mut self, at: Duration, most: u64) -> Duration {
        self.advance(at);
        let mut left = self.sum;
        if left <= most {
            return Duration::ZERO;
        }
        // The oldest second first: `s` counts until `s + 61` begins.
        for age in (0..SECONDS).rev() {
            let Some(second) = self.second.checked_sub(age) else { continue };
            left -= self.slots[(second % SECONDS) as usize].min(left);
            if left <= most {
                return Duration::from_secs(second + SECONDS).saturating_sub(at);
            }
        }
        Duration::from_secs(SECONDS)
    }

    fn advance(&mut self, at: Duration) {
        let now = at.as_secs();
        if now <= self.second {
            return;
        }
        for step in 1..=(now - self.second).min(SECONDS) {
            let slot = &mut self.slots[((self.second + step) % SECONDS) as usize];
            self.sum -= std::mem::take(slot).min(self.sum);
        }
        self.second = now;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn an_amount_counts_for_at_least_sixty_seconds_and_less_than_sixty_one() {
        let mut window = Window::default();
        window.add(at(100_900), 5);
        for (ms, sum) in [(100_900, 5), (160_900, 5), (160_999, 5), (161_000, 0), (999_000, 0)] {
            assert_eq!(window.clone().sum(at(ms)), sum, "{ms}");
        }
        assert_eq!(window.until(at(101_500), 4), at(59_500));
        assert_eq!(window.until(at(101_500), 5), Duration::ZERO);
        assert_eq!(window.sum(at(1000)), 5, "a time before the latest");
    }

    proptest! {
        #[test]
        fn no_minute_holds_more_than_a_log_of_all_amounts_says(
            steps in prop::collection::vec((0_u64..20_000, 0_u64..100), 1..200)
        ) {
            let (mut window, mut log, mut now) = (Window::default(), Vec::new(), 0);
            for (pause, amount) in steps {
                now += pause;
                window.add(at(now), amount);
                log.push((now, amount));
                let within = |ms| log.iter().filter(|(when, _)| when + ms > now).map(|x| x.1).sum();
                let (least, most): (u64, u64) = (within(60_000), within(61_000));
                let sum = window.sum(at(now));
                prop_assert!(least <= sum && sum <= most, "{least} {sum} {most}");
                let wait = window.until(at(now), sum / 2);
                prop_assert!(window.clone().sum(at(now) + wait) <= sum / 2);
                if wait > Duration::ZERO {
                    let before = at(now) + wait - Duration::from_nanos(1);
                    prop_assert!(window.clone().sum(before) > sum / 2);
                }
            }
        }
    }
}
