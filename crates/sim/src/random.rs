//! Random numbers by counting: the i-th number of a stream is a function of the seed and of i.
//!
//! ```text
//! seed, stream ──▶ key        number i = mix(key + i · golden ratio)
//! ```
//!
//! Every request draws from a stream of its own, so that its lengths do not depend on how many
//! numbers the requests before it took. The mixer is SplitMix64 (Steele, Lea and Flood, "Fast
//! splittable pseudorandom number generators", OOPSLA 2014).

/// The odd number nearest to 2⁶⁴ / φ.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// One number in, one well-mixed number out.
pub(crate) fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(GOLDEN);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The stream of this number under this seed.
    pub fn new(seed: u64, stream: u64) -> Self {
        Self { state: mix(mix(seed) ^ stream) }
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let bits = mix(self.state);
        self.state = self.state.wrapping_add(GOLDEN);
        bits
    }

    /// From 0 up to, not including, 1.
    pub fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// From 0 up to, not including, `n`.
    ///
    /// # Panics
    ///
    /// Panics if `n` is zero.
    pub fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0, "there is no number below zero");
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }

    /// Exponential: the time to the next of events that come one per `mean` on average.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        // 1 - uniform is never zero.
        -mean * (1.0 - self.uniform()).ln()
    }

    /// Normal with mean 0 and deviation 1 (Box and Muller, 1958; the second of the pair is
    /// dropped).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// Log-normal with this median, `sigma` being the deviation of the logarithm.
    pub fn log_normal(&mut self, median: f64, sigma: f64) -> f64 {
        median * (sigma * self.normal()).exp()
    }

    /// Pareto: at least `least`, and beyond `x` with probability `(least / x)^alpha`.
    pub fn pareto(&mut self, least: f64, alpha: f64) -> f64 {
        least * (1.0 - self.uniform()).powf(-1.0 / alpha)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(n: u32, mut draw: impl FnMut(&mut Random) -> f64) -> Vec<f64> {
        let mut random = Random::new(3, 1);
        (0..n).map(|_| draw(&mut random)).collect()
    }

    fn mean(values: &[f64]) -> f64 {
        values.iter().sum::<f64>() / values.len() as f64
    }

    #[test]
    fn the_same_stream_gives_the_same_numbers_and_others_give_others() {
        let take = |seed, stream| -> Vec<u64> {
            let mut random = Random::new(seed, stream);
            (0..8).map(|_| random.bits()).collect()
        };
        assert_eq!(take(1, 2), take(1, 2));
        assert_ne!(take(1, 2), take(1, 3));
        assert_ne!(take(1, 2), take(2, 2));
    }

    #[test]
    fn the_distributions_have_their_moments() {
        let near = |x: f64, expected: f64| assert!((x / expected - 1.0).abs() < 0.02, "{x}");
        near(mean(&sample(100_000, Random::uniform)), 0.5);
        near(mean(&sample(100_000, |r| r.exponential(7.0))), 7.0);
        near(mean(&sample(100_000, |r| r.normal().powi(2))), 1.0);
        assert!(mean(&sample(100_000, Random::normal)).abs() < 0.02);
        near(mean(&sample(100_000, |r| r.pareto(10.0, 3.0))), 15.0);
        let mut lengths = sample(100_001, |r| r.log_normal(50.0, 1.0));
        lengths.sort_by(f64::total_cmp);
        near(lengths[50_000], 50.0);
        near(lengths[84_134], 50.0 * 1_f64.exp());
        assert!(sample(10_000, |r| r.below(7) as f64).iter().all(|&x| x < 7.0));
        near(mean(&sample(100_000, |r| r.below(7) as f64)), 3.0);
    }
}
