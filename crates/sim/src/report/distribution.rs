//! Latencies summed up: mean, percentiles, and a line that shows their shape.

use serde::Serialize;

/// Bins of a sparkline.
const N_BINS: usize = 24;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Latencies of some requests, in milliseconds.
///
/// Percentiles are of the nearest rank: P95 is the smallest value that at least 95 of 100 do not
/// exceed. So each is a latency that some request had, and nothing is interpolated.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Distribution {
    /// Number of values.
    pub n: usize,
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// The longest.
    pub max: f64,
    /// Bars for the number of values in each quarter of a decade, from the shortest to the longest.
    #[serde(skip)]
    pub sparkline: String,
}

impl Distribution {
    /// Sums up nanoseconds; `None` when there are none.
    pub fn new(mut ns: Vec<u64>) -> Option<Self> {
        ns.sort_unstable();
        let (&least, &most) = (ns.first()?, ns.last()?);
        let ms = |ns: u64| ns as f64 / 1e6;
        let sum: u128 = ns.iter().map(|&ns| u128::from(ns)).sum();
        Some(Self {
            n: ns.len(),
            mean: sum as f64 / ns.len() as f64 / 1e6,
            p50: ms(percentile(&ns, 50)),
            p95: ms(percentile(&ns, 95)),
            p99: ms(percentile(&ns, 99)),
            max: ms(most),
            sparkline: sparkline(&ns, least, most),
        })
    }
}

/// The nearest rank of sorted values.
///
/// # Panics
///
/// Panics without values, and unless `percent` is from 1 to 100.
pub fn percentile(sorted: &[u64], percent: usize) -> u64 {
    assert!((1..=100).contains(&percent), "a percentile is from 1 to 100");
    let rank = (sorted.len() as u128 * percent as u128).div_ceil(100) as usize;
    sorted[rank - 1]
}

/// One bar per bin; bins are equally wide on a logarithmic scale.
fn sparkline(sorted: &[u64], least: u64, most: u64) -> String {
    let place = |ns: u64| (ns.max(1) as f64).ln();
    let (first, width) = (place(least), (place(most) - place(least)) / N_BINS as f64);
    if width <= 0.0 {
        return BARS[7].to_string();
    }
    let mut bins = [0_usize; N_BINS];
    for &ns in sorted {
        bins[(((place(ns) - first) / width) as usize).min(N_BINS - 1)] += 1;
    }
    let tallest = bins.iter().copied().max().unwrap_or(1);
    let bar = |n: usize| if n == 0 { ' ' } else { BARS[(n * 8).div_ceil(tallest) - 1] };
    bins.into_iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let hundred: Vec<u64> = (1..=100).collect();
        assert_eq!([1, 50, 95, 99, 100].map(|p| percentile(&hundred, p)), [1, 50, 95, 99, 100]);
        let five = [15, 20, 35, 40, 50];
        assert_eq!([5, 30, 40, 50, 100].map(|p| percentile(&five, p)), [15, 20, 20, 35, 50]);
        assert_eq!([1, 50, 100].map(|p| percentile(&[7], p)), [7; 3]);
        assert_eq!([50, 51, 99].map(|p| percentile(&[1, 2], p)), [1, 2, 2]);
        let thousand: Vec<u64> = (1..=1000).collect();
        assert_eq!([50, 95, 99].map(|p| percentile(&thousand, p)), [500, 950, 990]);
        let more: Vec<u64> = (1..=1001).collect();
        assert_eq!([50, 95, 99].map(|p| percentile(&more, p)), [501, 951, 991]);
    }

    #[test]
    fn a_distribution_is_in_milliseconds_and_needs_no_order() {
        let told = Distribution::new(vec![4_000_000, 1_000_000, 2_000_000]).expect("values");
        assert_eq!((told.n, told.p50, told.p95, told.p99, told.max), (3, 2.0, 4.0, 4.0, 4.0));
        assert!((told.mean - 7.0 / 3.0).abs() < 1e-12);
        assert_eq!(Distribution::new(Vec::new()), None);
        let large = Distribution::new(vec![u64::MAX; 3]).expect("values");
        assert!((large.mean - u64::MAX as f64 / 1e6).abs() < 1e3);
    }

    #[test]
    fn the_sparkline_shows_where_the_values_are() {
        let told = Distribution::new(vec![1, 1_000, 1_000, 1_000_000]).expect("values");
        let bars: Vec<char> = told.sparkline.chars().collect();
        assert_eq!(bars.len(), N_BINS);
        assert_eq!((bars[0], bars[12], bars[23]), ('▄', '█', '▄'));
        assert_eq!(bars.iter().filter(|&&bar| bar != ' ').count(), 3);
        assert_eq!(Distribution::new(vec![5, 5]).expect("values").sparkline, "█");
    }
}
