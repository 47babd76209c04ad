//! Control charts: how long things took lately, and since the start.
//!
//! ```text
//! slices  [ 1 s ][ 1 s ][ 1 s ] ... [ now ]       a ring of 32; each is a histogram
//!                       └── looked back ──┘       summed when asked
//! bucket  8 per doubling, from 1 µs to 19 hours   so a quantile is right to 6 %
//! ```
//!
//! A sample is one increment in the present slice and one in the histogram since the start, which
//! is what Prometheus scrapes. Memory is fixed (about 140 KiB for all charts) and a sample
//! allocates nothing. Quantiles are looked up by whoever decides, some times a second, over as much
//! of the past as the decision is about: what came before the last change says nothing about it.
//!
//! **Architecture invariant:** no clock. Moments are nanoseconds since whatever start the caller
//! counts from, so a simulator can drive the charts.
//!
//! Tried and dropped: keeping the samples and sorting them (unbounded memory, or a sample of the
//! samples, which loses the tail that is being watched); decaying counts (a quantile of them has no
//! beginning in time, so it mixes before and after a change).

use std::time::Duration;

/// Slices in the ring, the present one included.
const N_SLICES: usize = 32;
/// Buckets per doubling.
const PER_OCTAVE: u64 = 8;
/// Doublings above a microsecond.
const N_OCTAVES: u64 = 33;
const N_BUCKETS: usize = (PER_OCTAVE * (N_OCTAVES + 1)) as usize;
/// The resolution at the short end.
const MICROSECOND: u64 = 1000;

/// One thing that is measured, over and over.
#[derive(Clone, Debug)]
pub struct Chart {
    /// `[N_SLICES, N_BUCKETS]`.
    counts: Vec<u32>,
    slice_ns: u64,
    /// Number of the present slice, counted from the start.
    present: u64,
    total: Histogram,
}

impl Chart {
    /// An empty chart of slices of this length.
    ///
    /// # Panics
    ///
    /// When it is zero.
    pub fn new(slice: Duration) -> Self {
        let slice_ns = nanoseconds(slice);
        assert!(slice_ns > 0, "a slice has a length");
        let counts = vec![0; N_SLICES * N_BUCKETS];
        Self { counts, slice_ns, present: 0, total: Histogram::default() }
    }

    /// Adds `n` samples of `value_ns` nanoseconds, seen at `now_ns`.
    pub fn record(&mut self, now_ns: u64, value_ns: u64, n: u32) {
        self.advance(now_ns);
        let slice = (self.present % N_SLICES as u64) as usize;
        let count = &mut self.counts[slice * N_BUCKETS + bucket_of(value_ns)];
        *count = count.saturating_add(n);
        self.total.add(value_ns, n);
    }

    /// Measurements of the slices that began at `since_ns` or later, as far as the ring
    /// reaches.
    pub fn quantiles(&self, since_ns: u64) -> Quantiles {
        let first = since_ns.div_ceil(self.slice_ns);
        let oldest = (self.present + 1).saturating_sub(N_SLICES as u64);
        let mut counts = [0_u64; N_BUCKETS];
        for slice in first.max(oldest)..=self.present {
            let start = (slice % N_SLICES as u64) as usize * N_BUCKETS;
            for (sum, &count) in counts.iter_mut().zip(&self.counts[start..][..N_BUCKETS]) {
                *sum += u64::from(count);
            }
        }
        Quantiles::of(&counts)
    }

    /// The samples since the start.
    pub fn total(&self) -> &Histogram {
        &self.total
    }

    /// Empties the slices that the ring comes to anew.
    fn advance(&mut self, now_ns: u64) {
        let present = now_ns / self.slice_ns;
        let n_new = present.saturating_sub(self.present).min(N_SLICES as u64);
        // Time does not run backwards; a sample of the past counts as of now.
        self.present = self.present.max(present);
        for slice in (self.present + 1 - n_new)..=self.present {
            let start = (slice % N_SLICES as u64) as usize * N_BUCKETS;
            self.counts[start..][..N_BUCKETS].fill(0);
        }
    }
}

/// The four things that are charted.
#[derive(Clone, Debug)]
pub struct Charts {
    /// From submission to the first token.
    pub ttft: Chart,
    /// From a token to the next one of the same request.
    pub tpot: Chart,
    /// From submission to the first step with a share of the request.
    pub queue: Chart,
    /// Execution of a step.
    pub step: Chart,
}

impl Charts {
    /// Empty charts, of slices of this length.
    ///
    /// # Panics
    ///
    /// When it is zero.
    pub fn new(slice: Duration) -> Self {
        let chart = Chart::new(slice);
        Self { ttft: chart.clone(), tpot: chart.clone(), queue: chart.clone(), step: chart }
    }

    /// All of them, as measured in the slices that began at `since_ns` or later.
    pub fn snapshot(&self, since_ns: u64) -> ChartsSnapshot {
        ChartsSnapshot {
            ttft: self.ttft.quantiles(since_ns),
            tpot: self.tpot.quantiles(since_ns),
            queue: self.queue.quantiles(since_ns),
            step: self.step.quantiles(since_ns),
        }
    }

    /// All of them, since the start.
    pub fn totals(&self) -> Latencies {
        Latencies {
            ttft: *self.ttft.total(),
            tpot: *self.tpot.total(),
            queue: *self.queue.total(),
            step: *self.step.total(),
        }
    }
}

impl Default for Charts {
    /// Slices of one second: charts of the last half minute.
    fn default() -> Self {
        Self::new(Duration::from_secs(1))
    }
}

/// Every chart at one moment.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ChartsSnapshot {
    /// From submission to the first token.
    pub ttft: Quantiles,
    /// From a token to the next.
    pub tpot: Quantiles,
    /// From submission to the first step.
    pub queue: Quantiles,
    /// Execution of a step.
    pub step: Quantiles,
}

/// Every chart since the start.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Latencies {
    /// From submission to the first token.
    pub ttft: Histogram,
    /// From a token to the next.
    pub tpot: Histogram,
    /// From submission to the first step.
    pub queue: Histogram,
    /// Execution of a step.
    pub step: Histogram,
}

/// Quantiles of a chart, in nanoseconds; zero without samples.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Quantiles {
    /// Samples.
    pub n: u64,
    /// Half of them took at most this.
    pub p50_ns: u64,
    /// 95 of 100 did.
    pub p95_ns: u64,
    /// 99 of 100 did.
    pub p99_ns: u64,
}

impl Quantiles {
    fn of(counts: &[u64; N_BUCKETS]) -> Self {
        let n: u64 = counts.iter().sum();
        let quantile = |percent: u64| {
            // The rank of the sample that is asked for; the first is 1.
            let rank = (n * percent).div_ceil(100);
            let mut before = 0;
            for (bucket, &count) in counts.iter().enumerate() {
                if count > 0 && before + count >= rank {
                    let (low, high) = bounds_of(bucket);
                    let part = u128::from(high - low) * u128::from(2 * (rank - before) - 1);
                    return low + (part / u128::from(2 * count)) as u64;
                }
                before += count;
            }
            0
        };
        Self { n, p50_ns: quantile(50), p95_ns: quantile(95), p99_ns: quantile(99) }
    }
}

/// Samples since the start in the buckets of an exporter.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Histogram {
    counts: [u64; Self::BOUNDS_US.len() + 1],
    sum_ns: u64,
}

impl Histogram {
    /// Upper bounds of the buckets, in microseconds; the last bucket has none.
    /// vLLM's bounds for the time between two tokens are among them.
    const BOUNDS_US: [u64; 27] = [
        500,
        1_000,
        2_500,
        5_000,
        10_000,
        25_000,
        50_000,
        75_000,
        100_000,
        150_000,
        200_000,
        250_000,
        300_000,
        400_000,
        500_000,
        750_000,
        1_000_000,
        2_500_000,
        5_000_000,
        7_500_000,
        10_000_000,
        20_000_000,
        30_000_000,
        40_000_000,
        60_000_000,
        80_000_000,
        160_000_000,
    ];

    /// Adds `n` samples of `value_ns` nanoseconds.
    pub fn add(&mut self, value_ns: u64, n: u32) {
        let fits = |&bound: &u64| value_ns <= bound * MICROSECOND;
        let bucket = Self::BOUNDS_US.iter().position(fits).unwrap_or(Self::BOUNDS_US.len());
        self.counts[bucket] += u64::from(n);
        self.sum_ns = self.sum_ns.saturating_add(value_ns.saturating_mul(u64::from(n)));
    }

    /// Upper bound in seconds and number of samples that are not above it, the bounds ascending;
    /// the last is infinite and counts all.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let finite = Self::BOUNDS_US.iter().map(|&bound| bound as f64 / 1e6);
        finite.chain([f64::INFINITY]).zip(&self.counts).scan(0, |sum, (bound, count)| {
            *sum += count;
            Some((bound, *sum))
        })
    }

    /// Number of samples.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Sum of the samples.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_ns)
    }
}

/// The bucket of a time: its leading bit and the three below.
fn bucket_of(value_ns: u64) -> usize {
    let value = value_ns / MICROSECOND;
    let bucket = if value < PER_OCTAVE {
        value
    } else {
        let octave = u64::from(value.ilog2()) - 2;
        octave * PER_OCTAVE + (value >> (octave - 1)) - PER_OCTAVE
    };
    (bucket as usize).min(N_BUCKETS - 1)
}

/// The times of a bucket, in nanoseconds: from the first to before the second.
fn bounds_of(bucket: usize) -> (u64, u64) {
    let start = |bucket: u64| match bucket / PER_OCTAVE {
        0 => bucket,
        octave => (PER_OCTAVE + bucket % PER_OCTAVE) << (octave - 1),
    };
    (start(bucket as u64) * MICROSECOND, start(bucket as u64 + 1) * MICROSECOND)
}

/// A duration in nanoseconds, in 64 bits.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
