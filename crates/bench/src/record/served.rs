//! The reports of workloads that the simulator or the engine of this process served.

use pelton_sim::report::{Distribution, Served};
use serde::Serialize;

use super::{Measure, Reads, Reported};

/// A report of `pelton bench sim`.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(transparent)]
pub struct Simulated<'a>(pub &'a Served);

/// A report of `pelton bench load`.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(transparent)]
pub struct Driven<'a>(pub &'a Served);

impl Reported for Simulated<'_> {
    const KIND: &'static str = "sim";

    fn measures(&self) -> Vec<Measure> {
        measures(self.0)
    }

    fn is_interrupted(&self) -> bool {
        self.0.interrupted
    }

    fn threads(&self) -> Option<usize> {
        None
    }

    fn reads(&self) -> Option<Reads> {
        None
    }
}

impl Reported for Driven<'_> {
    const KIND: &'static str = "load";

    fn measures(&self) -> Vec<Measure> {
        measures(self.0)
    }

    fn is_interrupted(&self) -> bool {
        self.0.interrupted
    }

    fn threads(&self) -> Option<usize> {
        None
    }

    fn reads(&self) -> Option<Reads> {
        None
    }
}

/// The figures of each run, under its name where there are several; a run is one sample.
fn measures(served: &Served) -> Vec<Measure> {
    let n_runs = served.reports().count();
    let of = |(run, report): (&str, &pelton_sim::report::Report)| {
        let named = |what: &str| match n_runs {
            1 => what.to_owned(),
            _ => format!("{run}, {what}"),
        };
        let time = |what: &str, times: &Option<Distribution>| {
            let values = times.iter().flat_map(|t| [("P50", t.p50), ("P99", t.p99)]);
            let cost =
                |(which, ms)| Measure::cost(named(&format!("{what} {which}")), "ms", vec![ms]);
            values.map(cost).collect::<Vec<_>>()
        };
        let rate = Measure::rate(named("output"), "tokens/s", vec![report.all.output_tokens_per_s]);
        let mut measures = vec![rate];
        measures.extend(time("TTFT", &report.all.ttft_ms));
        measures.extend(time("TPOT", &report.all.tpot_ms));
        measures.extend(time("end to end", &report.all.end_to_end_ms));
        measures
    };
    served.named_reports().flat_map(of).collect()
}
