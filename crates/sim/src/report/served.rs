//! The report of a served trace under a headline, simulated or real.

use super::{ClientTimes, Comparison, Grouping, Ledger, Report};
use serde::Serialize;

/// A report of served requests, the server and its settings, as text or as one JSON object.
#[derive(Clone, Debug, Serialize)]
pub struct Served {
    /// The requests, in words.
    workload: String,
    /// The machine that served them, in words.
    server: String,
    #[serde(flatten)]
    comparison: Comparison,
    /// Whether the runs ended before their requests did.
    pub interrupted: bool,
}

impl Served {
    /// A report without runs.
    pub fn new(workload: String, server: String) -> Self {
        Self { workload, server, comparison: Comparison::default(), interrupted: false }
    }

    /// Adds a run.
    pub fn add(&mut self, name: String, ledger: &Ledger, grouping: Grouping<'_>) {
        self.comparison.add(name, Report::new(ledger, grouping));
    }

    /// Adds a run of which only the client's side is known.
    pub fn add_from_outside(
        &mut self,
        name: String,
        (ledger, times): (&Ledger, ClientTimes),
        grouping: Grouping<'_>,
    ) {
        self.comparison.add(name, Report::new(ledger, grouping).from_outside(times));
    }

    /// The reports of the runs, in the order in which they were added.
    pub fn reports(&self) -> impl Iterator<Item = &Report> {
        self.comparison.variants.iter().map(|variant| &variant.report)
    }

    /// The reason why no request of any run was answered; `None` where some were, or where none
    /// came.
    pub fn unanswered(&self) -> Option<String> {
        let came = self.reports().filter(|report| report.offered > 0);
        let reasons: Option<Vec<_>> = came.map(Report::unanswered).collect();
        reasons?.first().map(|&reason| reason.to_owned())
    }

    /// The reports, each with the name of its run.
    pub fn named_reports(&self) -> impl Iterator<Item = (&str, &Report)> {
        self.comparison.variants.iter().map(|variant| (variant.name.as_str(), &variant.report))
    }

    /// The headline, and the report of the only run or the comparison of several.
    pub fn render(&self) -> String {
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
