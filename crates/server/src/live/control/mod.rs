//! Control charts of a model: whether its times are what they used to be.
//!
//! ```text
//!   requests that end ──▶ group of 10 s ──▶ P50, P95, P99 ──▶ a point on each chart
//! ```
//!
//! A group without requests makes no point. A target says whether times are good enough; a control
//! chart says whether something has changed, also far below a target.

mod chart;

use self::chart::Chart;
pub(crate) use self::chart::Reading;
use super::meter::{Quantiles, Times};

/// Seconds of a group.
const GROUP_SECONDS: u64 = 10;
/// Requests of a group whose times are kept.
const MOST_OF_GROUP: usize = 1024;

/// The times that are charted, by name.
pub(crate) const MEASURES: [&str; 3] = ["ttft", "tpot", "e2e"];
/// The quantiles of each that are charted.
pub(crate) const QUANTILES: [&str; 3] = ["0.5", "0.95", "0.99"];

/// The charts of one model.
#[derive(Clone, Debug, Default)]
pub(crate) struct Control {
    group: Vec<Times>,
    /// Number of the group that is being filled.
    present: u64,
    /// `[MEASURES, QUANTILES]`.
    charts: [[Chart; QUANTILES.len()]; MEASURES.len()],
}

/// The charts of one time, each `None` before it has limits.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub(crate) struct Measure {
    pub(crate) p50: Option<Reading>,
    pub(crate) p95: Option<Reading>,
    pub(crate) p99: Option<Reading>,
}

impl Measure {
    /// In the order of [`QUANTILES`].
    pub(crate) fn readings(&self) -> [Option<Reading>; QUANTILES.len()] {
        [self.p50, self.p95, self.p99]
    }
}

/// All charts of a model.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub(crate) struct Readings {
    pub(crate) ttft: Measure,
    pub(crate) tpot: Measure,
    pub(crate) e2e: Measure,
}

impl Readings {
    /// In the order of [`MEASURES`].
    pub(crate) fn measures(&self) -> [Measure; MEASURES.len()] {
        [self.ttft, self.tpot, self.e2e]
    }
}

impl Control {
    /// Adds the times of a request that ended in this second.
    pub(super) fn add(&mut self, second: u64, times: Times) {
        self.advance(second);
        if self.group.len() < MOST_OF_GROUP {
            self.group.push(times);
        }
    }

    /// Makes points of the group, if its time is over.
    pub(super) fn advance(&mut self, second: u64) {
        let present = second / GROUP_SECONDS;
        if present <= self.present {
            return;
        }
        self.present = present;
        let parts: [fn(&Times) -> Option<f32>; MEASURES.len()] =
            [|times| times.ttft, |times| times.tpot, |times| times.e2e];
        for (charts, part) in self.charts.iter_mut().zip(parts) {
            let quantiles = Quantiles::of(self.group.iter().filter_map(part).collect());
            let Some(Quantiles { p50, p95, p99, .. }) = quantiles else { continue };
            for (chart, point) in charts.iter_mut().zip([p50, p95, p99]) {
                chart.push(point);
            }
        }
        self.group.clear();
    }

    /// The charts as they stand.
    pub(super) fn read(&self) -> Readings {
        let [ttft, tpot, e2e] = self.charts.each_ref().map(|charts| {
            let [p50, p95, p99] = charts.each_ref().map(Chart::read);
            Measure { p50, p95, p99 }
        });
        Readings { ttft, tpot, e2e }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_group_of_requests_is_a_point_and_an_empty_one_is_none() {
        let mut control = Control::default();
        let times = |ttft: f32| Times { ttft: Some(ttft), ..Times::default() };
        for group in 0..20 {
            // Every second group has no requests.
            let second = group * 2 * GROUP_SECONDS;
            (1..=100).for_each(|i| control.add(second, times(i as f32)));
            control.advance(second + GROUP_SECONDS);
        }
        let read = control.read();
        let values = read.ttft.readings().map(|reading| reading.expect("twenty points").value);
        assert_eq!(values, [50.0, 95.0, 99.0]);
        assert_eq!(read.tpot.readings(), [None; 3], "no request had a second token");
        (0..10_000).for_each(|_| control.add(1000, times(1.0)));
        assert_eq!(control.group.len(), MOST_OF_GROUP);
    }
}
