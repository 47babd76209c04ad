//! Arrival times: a Poisson process, steady or modulated.
//!
//! ```text
//! steady    | |   |  | |    |   |  |     |  | |      gaps are exponential, mean 1 / rate
//! bursty    |       ||||||||||     |        |||||    phases are exponential too:
//!            off      on        off           on     on a quarter of the time at 3.4 times the rate,
//!                                                    off the rest at a fifth of it
//! ```

use crate::random::Random;

/// Share of the time that bursts take, and how much faster and slower than the mean requests come.
const ON_SHARE: f64 = 0.25;
const ON_FACTOR: f64 = 3.4;
const OFF_FACTOR: f64 = (1.0 - ON_SHARE * ON_FACTOR) / (1.0 - ON_SHARE);
/// Mean length of a burst with the pause before it, in requests at the mean rate.
const CYCLE_REQUESTS: f64 = 80.0;

/// Moments of arrival, one after the other.
#[derive(Debug)]
pub(super) struct Arrivals {
    random: Random,
    rate: f64,
    now_s: f64,
    burst: Option<Burst>,
}

/// The phase at hand.
#[derive(Debug)]
struct Burst {
    is_on: bool,
    until_s: f64,
}

impl Arrivals {
    /// Arrivals with `rate` of them per second on average.
    pub(super) fn new(is_bursty: bool, rate: f64, seed: u64) -> Self {
        let burst = is_bursty.then_some(Burst { is_on: true, until_s: 0.0 });
        Self { random: Random::new(seed, 0), rate, now_s: 0.0, burst }
    }

    /// The next moment, in nanoseconds; never earlier than the one before.
    pub(super) fn next_ns(&mut self) -> u64 {
        loop {
            let factor = self.burst.as_ref().map_or(1.0, |burst| match burst.is_on {
                true => ON_FACTOR,
                false => OFF_FACTOR,
            });
            let next_s = self.now_s + self.random.exponential(1.0 / (self.rate * factor));
            match &mut self.burst {
                // Exponential gaps have no memory, so a new phase draws a new one.
                Some(burst) if next_s >= burst.until_s => {
                    self.now_s = burst.until_s;
                    burst.is_on = !burst.is_on;
                    let share = if burst.is_on { ON_SHARE } else { 1.0 - ON_SHARE };
                    let mean_s = share * CYCLE_REQUESTS / self.rate;
                    burst.until_s += self.random.exponential(mean_s);
                }
                _ => {
                    self.now_s = next_s;
                    return (next_s * 1e9) as u64;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mean gap, and the squared deviation of the gaps relative to it.
    fn gaps(is_bursty: bool, rate: f64) -> (f64, f64) {
        const N: usize = 200_000;
        let mut arrivals = Arrivals::new(is_bursty, rate, 5);
        let moments: Vec<f64> = (0..N).map(|_| arrivals.next_ns() as f64 / 1e9).collect();
        assert!(moments.is_sorted());
        let gaps: Vec<f64> = moments.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        (mean, variance / (mean * mean))
    }

    #[test]
    fn steady_gaps_are_exponential() {
        for rate in [0.5, 40.0] {
            let (mean, dispersion) = gaps(false, rate);
            assert!((mean * rate - 1.0).abs() < 0.02, "{mean}");
            assert!((dispersion - 1.0).abs() < 0.03, "{dispersion}");
        }
    }

    #[test]
    fn bursts_keep_the_rate_and_scatter_the_gaps() {
        let (mean, dispersion) = gaps(true, 3.0);
        assert!((mean * 3.0 - 1.0).abs() < 0.05, "{mean}");
        assert!(dispersion > 3.0, "{dispersion}");
    }
}
