//! How a served workload is told, simulated or real: a headline and the report, or one JSON object.

use pelton_bench::report::{Comparison, Grouping, Ledger, Report};
use pelton_bench::trace::Trace;
use serde::Serialize;

use crate::args::WorkloadArgs;
use crate::failure::{Failure, Result};

/// What was served, and how.
#[derive(Debug, Serialize)]
pub(super) struct Served {
    /// The requests, in words.
    workload: String,
    /// Who served them, in words.
    server: String,
    #[serde(flatten)]
    comparison: Comparison,
    /// Whether Ctrl-C came before the end.
    interrupted: bool,
}

impl Served {
    /// Nothing yet.
    pub(super) fn new(workload: &WorkloadArgs, trace: &Trace, server: String) -> Self {
        Self {
            workload: workload.describe(trace),
            server,
            comparison: Comparison::default(),
            interrupted: false,
        }
    }

    /// Adds a run.
    pub(super) fn add(
        &mut self,
        name: String,
        ledger: &Ledger,
        workload: &WorkloadArgs,
        trace: &Trace,
    ) {
        let long_prompt_tokens = workload.long_prompt_tokens();
        let grouping = Grouping { tenants: trace.tenants(), long_prompt_tokens };
        self.comparison.add(name, Report::new(ledger, grouping));
    }

    /// Prints everything; `is_interrupted` says that Ctrl-C came before the end.
    ///
    /// # Errors
    ///
    /// A standard output that takes nothing, and the Ctrl-C.
    pub(super) fn print(mut self, as_json: bool, is_interrupted: bool) -> Result<()> {
        self.interrupted = is_interrupted;
        super::print(&self, Self::render, as_json)?;
        if is_interrupted { Err(Failure::interrupted()) } else { Ok(()) }
    }

    fn render(&self) -> String {
        let Self { workload, server, comparison, interrupted } = self;
        let body = match &comparison.variants[..] {
            [only] => only.report.render(),
            _ => comparison.render(),
        };
        let note =
            if *interrupted { "\nInterrupted: this is what there was until then.\n" } else { "" };
        format!("{:<14}{workload}\n{:<14}{server}\n{body}{note}", "workload", "served by")
    }
}
