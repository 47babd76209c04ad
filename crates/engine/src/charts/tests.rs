//! Samples whose quantiles are known.

use super::*;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

#[test]
fn every_time_lies_in_its_bucket_and_buckets_touch() {
    for bucket in 0..N_BUCKETS - 1 {
        let (low, high) = bounds_of(bucket);
        assert_eq!((bucket_of(low), bucket_of(high - 1)), (bucket, bucket));
        assert_eq!(high, bounds_of(bucket + 1).0);
        assert!(bucket < 8 || (high - low) * 8 <= low, "an eighth of a time at most");
    }
    assert_eq!(bucket_of(u64::MAX), N_BUCKETS - 1);
}

#[test]
fn quantiles_are_those_of_the_samples() {
    let mut chart = Chart::new(Duration::from_secs(1));
    for i in 1..=1000 {
        chart.record(i * 7 * MS, (i * 389 % 1000 + 1) * MS, 1);
    }
    let Quantiles { n, p50_ns, p95_ns, p99_ns } = chart.quantiles(0);
    assert_eq!(n, 1000);
    for (got, expected) in [(p50_ns, 500), (p95_ns, 950), (p99_ns, 990)] {
        assert!(got.abs_diff(expected * MS) < expected * MS / 16, "{got} {expected}");
    }
    assert_eq!(Chart::new(Duration::from_secs(1)).quantiles(0), Quantiles::default());
    // Samples of one bucket are taken to lie evenly in it: two of them at its quarters.
    let mut chart = Chart::new(Duration::from_secs(1));
    chart.record(0, MS, 2);
    let (low, high) = bounds_of(bucket_of(MS));
    let Quantiles { p50_ns, p99_ns, .. } = chart.quantiles(0);
    assert_eq!((p50_ns, p99_ns), (low + (high - low) / 4, low + (high - low) * 3 / 4));
}

#[test]
fn what_is_older_than_asked_or_than_the_ring_is_not_counted() {
    let mut chart = Chart::new(Duration::from_secs(1));
    for second in 0..100 {
        chart.record(second * SECOND + 5, 10 * MS, 2);
    }
    assert_eq!(chart.quantiles(0).n, 64, "the whole ring");
    assert_eq!(chart.quantiles(90 * SECOND).n, 20);
    assert_eq!(chart.quantiles(89 * SECOND + 1).n, 20, "only whole slices");
    chart.record(500 * SECOND, MS, 1);
    assert_eq!(chart.quantiles(0).n, 1, "after a pause nothing old is left");
    chart.record(400 * SECOND, MS, 1);
    assert_eq!(chart.quantiles(0).n, 2, "a late sample counts as of now");
    assert_eq!(chart.total().count(), 202);
}

#[test]
fn the_histogram_of_an_exporter_ascends_to_all_samples() {
    let mut histogram = Histogram::default();
    for (value, n) in [(0, 1), (500_000, 2), (500_001, 4), (3 * SECOND, 8), (u64::MAX, 1)] {
        histogram.add(value, n);
    }
    let buckets: Vec<(f64, u64)> = histogram.cumulative().collect();
    assert_eq!(buckets[..2], [(0.0005, 3), (0.001, 7)]);
    let up_to = |le: f64| buckets.iter().find(|(bound, _)| *bound == le).map(|(_, n)| *n);
    assert_eq!((up_to(2.5), up_to(5.0)), (Some(7), Some(15)));
    assert_eq!(buckets.last(), Some(&(f64::INFINITY, 16)));
    assert_eq!(histogram.count(), 16);
    assert!(buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1));
}
