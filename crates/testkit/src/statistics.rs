//! Whether random answers have the distribution that they should have.
//!
//! ```text
//! set of seeds 1 ─▶ n draws ─▶ counts ─▶ chi-square against the probabilities ─▶ p-value ┐
//! set of seeds 2 ─▶ ...                                                       ─▶ p-value ├─▶ one
//!  ...                                                                                   ┘
//! ```
//!
//! A right generator has p-values that are uniform in `[0, 1]`, so with many of them some are tiny,
//! and a test that fails at the first below 0.01 fails for one right generator in a hundred. A
//! wrong generator has p-values near zero in every set. Hence a generator is judged by its p-values
//! together ([`combined`], Fisher's method), and many generators by the same at a level divided by
//! their number (Bonferroni), by how many small p-values there are ([`at_least_so_many`]), and by
//! whether all of them are uniform ([`uniformity`]).
//!
//! Crates whose tests should not have to compile all that this crate stands on include this file by
//! its path.
//!
//! Seeds are given, so a test that uses this passes always or never.
//!
//! The tail of chi-square is a regularised incomplete gamma function of a whole or half number,
//! which makes the gamma function itself a product. So it stands here: the crate that has it locks
//! a linear algebra library with it.

/// Cells that are expected to be hit less often than this are thrown together, since chi-square is
/// the limit of many hits.
const LEAST_EXPECTED: f64 = 5.0;

/// Probability that chi-square with so many degrees of freedom is at least this large.
pub fn chi_square_tail(chi_square: f64, n_degrees: usize) -> f64 {
    if n_degrees == 0 || chi_square <= 0.0 {
        return 1.0;
    }
    let (a, x) = (n_degrees as f64 / 2.0, chi_square / 2.0);
    // x^a e^-x / gamma(a + 1)
    let front = (a * x.ln() - x - ln_gamma_of_next(n_degrees)).exp();
    if x < a + 1.0 { 1.0 - front * lower_series(a, x) } else { front * a * upper_fraction(a, x) }
}

/// The logarithm of `gamma(n / 2 + 1)`.
fn ln_gamma_of_next(n: usize) -> f64 {
    let factors = (1..=n).rev().step_by(2).map(|twice| (twice as f64 / 2.0).ln());
    let ln_gamma_of_half = std::f64::consts::PI.ln() / 2.0;
    factors.sum::<f64>() + if n % 2 == 1 { ln_gamma_of_half } else { 0.0 }
}

/// `1 + x / (a + 1) + x^2 / ((a + 1) (a + 2)) + ...`: the lower tail, where it is the smaller one.
fn lower_series(a: f64, x: f64) -> f64 {
    let (mut term, mut sum, mut n) = (1.0, 1.0, a);
    while term > sum * f64::EPSILON {
        n += 1.0;
        term *= x / n;
        sum += term;
    }
    sum
}

/// `1 / (x + 1 - a - 1 (1 - a) / (x + 3 - a - 2 (2 - a) / (x + 5 - a - ...)))`: the upper tail,
/// where
/// it is the smaller one; evaluated from a term that is deep enough for many thousands of cells.
fn upper_fraction(a: f64, x: f64) -> f64 {
    const DEPTH: u32 = 1000;
    let deepest = x + f64::from(2 * DEPTH + 1) - a;
    let numbers = (1..=DEPTH).rev().map(f64::from);
    1.0 / numbers.fold(deepest, |rest, n| x + 2.0 * n - 1.0 - a - n * (n - a) / rest)
}

/// The p-value of `counts` under `probabilities`, by Pearson's test.
///
/// A hit of what cannot be (probability zero) gives zero. Where there is only one cell to hit,
/// every right generator gives 1.
///
/// # Panics
///
/// If there are not as many counts as probabilities.
pub fn p_value(counts: &[u64], probabilities: &[f64]) -> f64 {
    assert_eq!(counts.len(), probabilities.len(), "a count for each probability");
    let n_draws = counts.iter().sum::<u64>() as f64;
    let (mut chi_square, mut n_cells) = (0.0, 0);
    let (mut rare_count, mut rare_expected) = (0.0, 0.0);
    let mut add = |count: f64, expected: f64| {
        chi_square += (count - expected).powi(2) / expected;
        n_cells += 1;
    };
    for (&count, &probability) in counts.iter().zip(probabilities) {
        if probability <= 0.0 {
            if count > 0 {
                return 0.0;
            }
            continue;
        }
        let expected = probability * n_draws;
        if expected >= LEAST_EXPECTED {
            add(count as f64, expected);
            continue;
        }
        rare_count += count as f64;
        rare_expected += expected;
        if rare_expected >= LEAST_EXPECTED {
            add(std::mem::take(&mut rare_count), std::mem::take(&mut rare_expected));
        }
    }
    if rare_expected > 0.0 {
        add(rare_count, rare_expected);
    }
    chi_square_tail(chi_square, n_cells.max(1) - 1)
}

/// One p-value for independent ones, by Fisher's method: small when they are small together.
pub fn combined(p_values: &[f64]) -> f64 {
    let log_sum: f64 = p_values.iter().map(|p| p.max(f64::MIN_POSITIVE).ln()).sum();
    chi_square_tail(-2.0 * log_sum, 2 * p_values.len())
}

/// Probability that of `n` trials with this `probability`, neither 0 nor 1, at least `n_hits`
/// succeed.
pub fn at_least_so_many(n_hits: usize, n: usize, probability: f64) -> f64 {
    let ln_odds = (probability / (1.0 - probability)).ln();
    let (mut ln_term, mut sum) = (n as f64 * (1.0 - probability).ln(), 0.0);
    for k in 0..=n {
        if k >= n_hits {
            sum += ln_term.exp();
        }
        ln_term += ((n - k) as f64 / (k + 1) as f64).ln() + ln_odds;
    }
    sum.min(1.0)
}

/// The p-value of the claim that `p_values` are uniform in `[0, 1]`, by ten equal cells.
///
/// P-values of 1 are left out: they come from generators that have one answer.
pub fn uniformity(p_values: &[f64]) -> f64 {
    let mut counts = [0_u64; 10];
    for p in p_values.iter().filter(|p| **p < 1.0) {
        counts[(p * 10.0) as usize] += 1;
    }
    p_value(&counts, &[0.1; 10])
}

/// The p-values of a generator of cells, one for each set of seeds.
///
/// Set `i` draws with the seeds `i * n_draws .. (i + 1) * n_draws`; `generator` turns a seed into
/// the index of a cell.
///
/// # Panics
///
/// If the generator answers with a cell that has no probability.
pub fn p_values_over_sets(
    probabilities: &[f64],
    n_sets: usize,
    n_draws: usize,
    mut generator: impl FnMut(u64) -> usize,
) -> Vec<f64> {
    let mut counts = vec![0; probabilities.len()];
    (0..n_sets)
        .map(|set| {
            counts.fill(0);
            for draw in 0..n_draws {
                counts[generator((set * n_draws + draw) as u64)] += 1;
            }
            p_value(&counts, probabilities)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uniform in `[0, 1)` by the finalizer of SplitMix64.
    fn uniform(seed: u64) -> f64 {
        let mut x = seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((x ^ x >> 31) >> 11) as f64 / (1_u64 << 53) as f64
    }

    #[test]
    fn tails_are_those_of_the_tables() {
        // Critical values of chi-square as printed in every table, and a binomial worked by hand.
        for (chi_square, n_degrees, tail) in
            [(3.841, 1, 0.05), (6.635, 1, 0.01), (18.307, 10, 0.05), (135.807, 100, 0.01)]
        {
            let got = chi_square_tail(chi_square, n_degrees);
            assert!((got - tail).abs() < 2e-5, "{got} of {tail}");
        }
        assert!((at_least_so_many(2, 3, 0.5) - 0.5).abs() < 1e-12);
        assert!((at_least_so_many(1, 20, 0.01) - (1.0 - 0.99_f64.powi(20))).abs() < 1e-12);
        assert_eq!((at_least_so_many(0, 3, 0.5), at_least_so_many(4, 3, 0.5)), (1.0, 0.0));
    }

    #[test]
    fn an_impossible_hit_is_fatal_and_a_certain_one_says_nothing() {
        assert_eq!(p_value(&[10, 1], &[1.0, 0.0]), 0.0);
        assert_eq!(p_value(&[10, 0], &[1.0, 0.0]), 1.0);
        assert_eq!(p_value(&[50, 50], &[0.5, 0.5]), 1.0);
    }

    #[test]
    fn a_right_die_has_uniform_p_values_and_a_loaded_one_small_ones() {
        let throw = |seed: u64, bias: f64| {
            if uniform(!seed) < bias { 0 } else { (uniform(seed) * 6.0) as usize }
        };
        let fair = p_values_over_sets(&[1.0 / 6.0; 6], 100, 600, |seed| throw(seed, 0.0));
        assert!(combined(&fair) > 0.01 && uniformity(&fair) > 0.01, "{fair:?}");
        let loaded = p_values_over_sets(&[1.0 / 6.0; 6], 100, 600, |seed| throw(seed, 0.05));
        assert!(combined(&loaded) < 1e-6 && uniformity(&loaded) < 1e-6, "{loaded:?}");
    }
}
