//! Arrival times: a Poisson process, steady or modulated.
//!
//! ```text
//! steady    | |   |  | |    |   |  |     |  | |      gaps are exponential, mean 1 / rate
//! constant  |    |    |    |    |    |    |    |     gaps are equal
//! ramp      |         |       |     |    |  | ||     the rate rises from a tenth to 1.9 times the
//!                                                    mean over the workload; gaps are exponential
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

/// First and last rate of a ramp, as factors of its mean.
const RAMP: (f64, f64) = (0.1, 1.9);

/// How requests follow each other.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ArrivalKind {
    /// Independent of each other.
    Poisson,
    /// In bursts.
    Bursty,
    /// At equal distances.
    Constant,
    /// Faster and faster.
    Ramp,
}

impl ArrivalKind {
    /// Every kind.
    pub const ALL: &[Self] = &[Self::Poisson, Self::Bursty, Self::Constant, Self::Ramp];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Poisson => "poisson",
            Self::Bursty => "bursty",
            Self::Constant => "constant",
            Self::Ramp => "ramp",
        }
    }

    /// First and last rate of a ramp with this mean rate; `None` where the mean rate stays.
    pub fn ramp(self, mean_rate: f64) -> Option<(f64, f64)> {
        (self == Self::Ramp).then_some((RAMP.0 * mean_rate, RAMP.1 * mean_rate))
    }
}

/// Moments of arrival, one after the other.
#[derive(Debug)]
pub(super) struct Arrivals {
    random: Random,
    rate: f64,
    now_s: f64,
    course: Course,
}

/// The rest of what the next moment depends on.
#[derive(Debug)]
enum Course {
    Poisson,
    Bursty(Burst),
    /// Requests so far.
    Constant(u64),
    /// Length of the ramp in seconds, and the requests that are expected until now.
    Ramp(f64, f64),
}

/// The phase at hand.
#[derive(Debug)]
struct Burst {
    is_on: bool,
    until_s: f64,
}

impl Arrivals {
    /// `n_requests` arrivals, `rate` of them per second on average.
    pub(super) fn new(kind: ArrivalKind, rate: f64, n_requests: u64, seed: u64) -> Self {
        let course = match kind {
            ArrivalKind::Poisson => Course::Poisson,
            ArrivalKind::Bursty => Course::Bursty(Burst { is_on: true, until_s: 0.0 }),
            ArrivalKind::Constant => Course::Constant(0),
            ArrivalKind::Ramp => Course::Ramp(n_requests as f64 / rate, 0.0),
        };
        Self { random: Random::new(seed, 0), rate, now_s: 0.0, course }
    }

    /// The next moment, in nanoseconds; never earlier than the one before.
    pub(super) fn next_ns(&mut self) -> u64 {
        match &mut self.course {
            Course::Poisson => self.now_s += self.random.exponential(1.0 / self.rate),
            Course::Constant(n) => {
                *n += 1;
                self.now_s = *n as f64 / self.rate;
            }
            Course::Ramp(length_s, expected) => {
                *expected += self.random.exponential(1.0);
                // Solves: expected = first * t + (last - first) * t² / (2 * length).
                let (first, last) = (RAMP.0 * self.rate, RAMP.1 * self.rate);
                let a = (last - first) / (2.0 * *length_s);
                self.now_s = ((first * first + 4.0 * a * *expected).sqrt() - first) / (2.0 * a);
            }
            Course::Bursty(burst) => {
                self.now_s = burst.next_s(self.now_s, self.rate, &mut self.random);
            }
        }
        (self.now_s * 1e9) as u64
    }
}

impl Burst {
    fn next_s(&mut self, mut now_s: f64, rate: f64, random: &mut Random) -> f64 {
        loop {
            let factor = if self.is_on { ON_FACTOR } else { OFF_FACTOR };
            let next_s = now_s + random.exponential(1.0 / (rate * factor));
            if next_s < self.until_s {
                return next_s;
            }
            // Exponential gaps have no memory, so a new phase draws a new one.
            now_s = self.until_s;
            self.is_on = !self.is_on;
            let share = if self.is_on { ON_SHARE } else { 1.0 - ON_SHARE };
            self.until_s += random.exponential(share * CYCLE_REQUESTS / rate);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mean gap, and the squared deviation of the gaps relative to it.
    fn gaps(kind: ArrivalKind, rate: f64) -> (f64, f64) {
        const N: usize = 200_000;
        let mut arrivals = Arrivals::new(kind, rate, N as u64, 5);
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
            let (mean, dispersion) = gaps(ArrivalKind::Poisson, rate);
            assert!((mean * rate - 1.0).abs() < 0.02, "{mean}");
            assert!((dispersion - 1.0).abs() < 0.03, "{dispersion}");
        }
    }

    #[test]
    fn bursts_keep_the_rate_and_scatter_the_gaps() {
        let (mean, dispersion) = gaps(ArrivalKind::Bursty, 3.0);
        assert!((mean * 3.0 - 1.0).abs() < 0.05, "{mean}");
        assert!(dispersion > 3.0, "{dispersion}");
    }

    #[test]
    fn constant_gaps_are_equal() {
        let (mean, dispersion) = gaps(ArrivalKind::Constant, 8.0);
        assert!((mean - 0.125).abs() < 1e-9 && dispersion < 1e-9, "{mean} {dispersion}");
    }

    #[test]
    fn a_ramp_keeps_the_mean_rate_and_ends_much_faster_than_it_begins() {
        let n = 20_000;
        let mut arrivals = Arrivals::new(ArrivalKind::Ramp, 10.0, n, 5);
        let moments: Vec<f64> = (0..n).map(|_| arrivals.next_ns() as f64 / 1e9).collect();
        let end = moments.last().expect("moments");
        assert!((end / 2_000.0 - 1.0).abs() < 0.02, "{end}");
        let within = |from: f64, to: f64| {
            moments.iter().filter(|at| (from * end..to * end).contains(at)).count() as f64
        };
        // Rates in the middle of the first and the last tenth: 0.19 and 1.81 of the mean.
        let ratio = within(0.9, 1.0) / within(0.0, 0.1);
        assert!((8.5..10.5).contains(&ratio), "{ratio}");
    }
}
