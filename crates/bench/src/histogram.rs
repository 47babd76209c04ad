//! Histograms of times over many orders of magnitude, in the manner of HdrHistogram.
//!
//! ```text
//! nanoseconds   0 1 2 ... 255 | 256 258 ... 510 | 512 516 ... | 1024 ...      each octave in 128 parts
//! ```
//!
//! A bucket is at most 1/128 as wide as its lowest value, so any time read from a histogram is within
//! 0.8 % of the one that was measured, from nanoseconds to years. Only buckets with a time are kept.
//!
//! Percentiles of reports are of all values and not of these buckets; histograms are there so that a
//! file of a run with a million tokens keeps the whole shape of their times.

use std::collections::BTreeMap;

use serde::Serialize;

/// Parts of an octave, as a power of two.
const PARTS_LOG: u32 = 7;

/// Times by buckets.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Histogram {
    /// Number of times.
    pub n: u64,
    /// Largest distance of a time from the middle of its bucket, as a part of it.
    pub relative_error: f64,
    /// Lowest and highest milliseconds of each bucket with a time, and the number of these.
    pub buckets_ms: Vec<(f64, f64, u64)>,
}

impl Histogram {
    /// Sums up times in milliseconds; `None` without any.
    pub fn new(times_ms: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
        let mut n = 0;
        for ms in times_ms {
            n += 1;
            *counts.entry(lowest((ms.max(0.0) * 1e6).round() as u64)).or_insert(0) += 1;
        }
        let bucket = |(low, n): (u64, u64)| {
            let ms = |ns: u64| ns as f64 / 1e6;
            (ms(low), ms(low + (width(low) - 1)), n)
        };
        let buckets_ms = counts.into_iter().map(bucket).collect();
        let relative_error = 0.5 / f64::from(1 << PARTS_LOG);
        (n > 0).then_some(Self { n, relative_error, buckets_ms })
    }
}

/// Nanoseconds of the bucket of a time.
fn width(ns: u64) -> u64 {
    let octave = u64::BITS - 1 - ns.max(1).leading_zeros();
    1 << octave.saturating_sub(PARTS_LOG)
}

/// The lowest time of the bucket of a time.
fn lowest(ns: u64) -> u64 {
    ns & !(width(ns) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_found_within_the_stated_error_at_any_size() {
        let error = 0.5 / 128.0;
        for exponent in 0..40_u32 {
            for step in [0, 1, 37, 100, 127] {
                let ns = (1_u64 << exponent) + ((u64::from(step as u32) << exponent) >> 7);
                let ms = ns as f64 / 1e6;
                let found = Histogram::new([ms]).expect("a time");
                let [(low, high, 1)] = found.buckets_ms[..] else { panic!("{found:?}") };
                assert!(low <= ms && ms <= high, "{ms}: {found:?}");
                assert!((high - low) / 2.0 <= error * ms, "{ms}: {low}..{high}");
                assert_eq!(found.relative_error, error);
            }
        }
    }

    #[test]
    fn buckets_are_in_order_apart_and_hold_every_time_once() {
        let times: Vec<f64> = (0..10_000).map(|i| f64::from(i) * f64::from(i) / 1e3).collect();
        let found = Histogram::new(times.iter().copied()).expect("times");
        assert_eq!((found.n, found.buckets_ms.iter().map(|b| b.2).sum::<u64>()), (10_000, 10_000));
        assert!(found.buckets_ms.windows(2).all(|pair| pair[0].1 < pair[1].0));
        // Some 128 for each of the 17 octaves of microseconds and more.
        assert!(found.buckets_ms.len() < 2_500, "{}", found.buckets_ms.len());
        assert_eq!(Histogram::new([]), None);
        assert_eq!(Histogram::new([0.0, -1.0]).expect("times").buckets_ms, [(0.0, 0.0, 2)]);
        let most = Histogram::new([f64::MAX]).expect("a time");
        assert_eq!(most.n, 1);
    }
}
