//! Estimates with their uncertainty: percentiles, and intervals by the bootstrap.
//!
//! ```text
//! groups (rounds)   [3 4 9] [2 5 5] [4 4 8]
//! resampled         [2 5 5] [3 4 9] [2 5 5]     groups are drawn, with all that is in them
//!                     └─ the estimate of each of 1,000 such draws: 2.5 % and 97.5 % quantiles
//! ```
//!
//! Values of one round depend on each other, because a slow minute slows all of them. So whole
//! rounds are drawn (a cluster bootstrap; Efron and Tibshirani, 1993). Two rounds are the fewest
//! that have an interval. Every tail is kept: a percentile is of the nearest rank, and so a value
//! that was measured.

use pelton_sim::Random;
use serde::Serialize;

/// Draws of one interval.
const N_DRAWS: usize = 1_000;
/// Seed of the draws: the same values give the same interval.
const SEED: u64 = 19;

/// The values between which an estimate lies with a confidence of 95 %.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// An estimate and its interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// The estimate from all values.
    pub value: f64,
    /// Its interval; absent with fewer than two groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<Interval>,
}

/// Some percentiles of values that came in groups.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Percentiles {
    /// Number of values.
    pub n: usize,
    /// Median.
    pub p50: Estimate,
    /// 95th percentile.
    pub p95: Estimate,
    /// 99th percentile.
    pub p99: Estimate,
}

impl Percentiles {
    /// The percentiles of all values of all groups; `None` without any.
    pub fn new(groups: &[Vec<f64>]) -> Option<Self> {
        let n = groups.iter().map(Vec::len).sum();
        let of = |percent| estimate(groups, |values| percentile(values, percent));
        Some(Self { n, p50: of(50)?, p95: of(95)?, p99: of(99)? })
    }
}

/// The `statistic` of all values, which it gets sorted, with its interval over the groups.
///
/// `None` without values.
pub fn estimate(groups: &[Vec<f64>], statistic: impl Fn(&[f64]) -> f64) -> Option<Estimate> {
    let full: Vec<&Vec<f64>> = groups.iter().filter(|group| !group.is_empty()).collect();
    let mut values: Vec<f64> = full.iter().flat_map(|group| group.iter().copied()).collect();
    if values.is_empty() {
        return None;
    }
    values.sort_by(f64::total_cmp);
    let value = statistic(&values);
    if full.len() < 2 {
        return Some(Estimate { value, interval: None });
    }
    let mut random = Random::new(SEED, 0);
    let mut draws: Vec<f64> = (0..N_DRAWS)
        .map(|_| {
            values.clear();
            for _ in 0..full.len() {
                values.extend(full[random.below(full.len() as u64) as usize]);
            }
            values.sort_by(f64::total_cmp);
            statistic(&values)
        })
        .collect();
    draws.sort_by(f64::total_cmp);
    let at = |share: f64| draws[((N_DRAWS - 1) as f64 * share).round() as usize];
    Some(Estimate { value, interval: Some(Interval { low: at(0.025), high: at(0.975) }) })
}

/// The nearest rank of sorted values: the smallest value that `percent` of 100 do not exceed.
///
/// # Panics
///
/// Panics without values, and unless `percent` is from 1 to 100.
pub fn percentile(sorted: &[f64], percent: usize) -> f64 {
    assert!((1..=100).contains(&percent), "a percentile is from 1 to 100");
    sorted[(sorted.len() * percent).div_ceil(100) - 1]
}

/// The middle of some values, or the mean of the two in the middle; `None` without any.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n.is_multiple_of(2) => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
        _ => Some(sorted[middle]),
    }
}

/// The arithmetic mean; `None` without values.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_value_that_was_measured() {
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(
            [1, 50, 95, 99, 100].map(|p| percentile(&hundred, p)),
            [1., 50., 95., 99., 100.]
        );
        assert_eq!([1, 50, 99].map(|p| percentile(&[7.0], p)), [7.0; 3]);
        assert_eq!([50, 51].map(|p| percentile(&[1.0, 2.0], p)), [1.0, 2.0]);
        assert_eq!((median(&[4.0, 1.0, 2.0, 9.0]), median(&[])), (Some(3.0), None));
    }

    #[test]
    fn the_slowest_of_a_hundred_is_the_tail_and_is_not_trimmed() {
        let mut values = vec![1.0; 199];
        values.push(500.0);
        values.push(500.0);
        values.push(500.0);
        let told = Percentiles::new(&[values]).expect("values");
        assert_eq!((told.n, told.p50.value, told.p99.value), (202, 1.0, 500.0));
        assert_eq!(told.p99.interval, None, "one round has no interval");
    }

    #[test]
    fn intervals_hold_the_truth_about_as_often_as_they_say() {
        // Twenty rounds of five values around 100, each round with a level of its own.
        let (mut n_held, n_trials) = (0, 200);
        for trial in 0..n_trials {
            let mut random = Random::new(7, trial);
            let groups: Vec<Vec<f64>> = (0..20)
                .map(|_| {
                    let level = 100.0 + 3.0 * random.normal();
                    (0..5).map(|_| level + random.normal()).collect()
                })
                .collect();
            let told = estimate(&groups, |values| mean(values).expect("values")).expect("values");
            let Interval { low, high } = told.interval.expect("groups");
            n_held += u64::from(low <= 100.0 && 100.0 <= high);
        }
        // Percentile intervals of twenty clusters are a little narrow. Intervals of single values
        // would forget that rounds hang together, and be far too narrow.
        assert!((175..=199).contains(&n_held), "{n_held} of {n_trials}");
    }
}
