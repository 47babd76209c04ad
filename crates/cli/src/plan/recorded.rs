//! The workload of a recorded trace: mean and longest lengths, shared beginnings, and the rate.

use std::collections::HashSet;
use std::path::Path;

use pelton_plan::advise::Scenario;
use pelton_sim::trace::TraceFile;

use crate::failure::Result;

/// The figures of a trace that advice needs.
#[derive(Clone, Debug, Default)]
pub(super) struct Recorded {
    n: u64,
    input: u64,
    output: u64,
    longest: usize,
    shared: u64,
    first_ns: u64,
    last_ns: u64,
}

impl Recorded {
    /// Reads a trace in any form that `bench serve --trace` reads.
    ///
    /// # Errors
    ///
    /// A file that is no trace.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let mut known = HashSet::new();
        let mut all = Self { first_ns: u64::MAX, ..Self::default() };
        for request in TraceFile::open(path)?.requests()? {
            let request = request?;
            all.n += 1;
            all.input += request.n_prompt as u64;
            all.output += request.n_output as u64;
            all.longest = all.longest.max(request.n_prompt + request.n_output);
            all.first_ns = all.first_ns.min(request.at_ns);
            all.last_ns = all.last_ns.max(request.at_ns);
            for prefix in request.prefixes.as_slice() {
                if !known.insert(prefix.id) {
                    all.shared += prefix.n_tokens as u64;
                }
            }
        }
        Ok(all)
    }

    /// Puts the lengths and the words of the trace in place of those of a scenario.
    pub(super) fn put(&self, scenario: &mut Scenario) {
        let mean = |sum: u64| (sum / self.n.max(1)).max(1) as usize;
        scenario.input_tokens = mean(self.input);
        scenario.output_tokens = mean(self.output);
        scenario.longest_tokens = Some(self.longest);
        scenario.shared_prefix = (self.shared as f64 / self.input.max(1) as f64).min(0.99);
        let rate = self.rate().map_or_else(String::new, |rate| format!(" at {rate:.2} per second"));
        scenario.words =
            format!("{} recorded requests{rate}, the longest of {} tokens", self.n, self.longest);
    }

    /// Number of requests.
    pub(super) fn n_requests(&self) -> usize {
        usize::try_from(self.n).unwrap_or(usize::MAX)
    }

    /// Requests per second; `None` where all arrive at the same moment.
    pub(super) fn rate(&self) -> Option<f64> {
        let seconds = self.last_ns.saturating_sub(self.first_ns) as f64 / 1e9;
        (seconds > 0.0).then(|| (self.n - 1) as f64 / seconds)
    }
}
