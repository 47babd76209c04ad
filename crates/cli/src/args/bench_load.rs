//! Flags of `pelton bench load`.

use std::num::NonZeroUsize;

use clap::Args;
use pelton_sim::trace::Tenants;

use super::workload::{TenantArgs, WorkloadArgs};
use crate::failure::Result;
use crate::flags::{Chosen, ModelArgs, SchedulingArgs};

pub(super) const LOAD_HELP_END: &str = "\
Examples:
  pelton bench load --scale 0.1
  pelton bench load -m model.gguf --workload shared-prefix -n 100
  pelton bench load -m model.gguf --workload mixed --scale 0.25 --rate 0.2 --json
  pelton bench load -m model.gguf --workload overload --concurrency 32

Sends the requests of `pelton bench sim` to the real engine in this process and prints the same
report. Requests arrive by the clock at the given rate, whether or not the engine keeps up; with
--concurrency each arrives when another has ended. Prompts are random tokens; answers are as long as
the workload says. Ctrl-C ends early and reports the requests so far.";

/// Flags of `pelton bench load`.
#[derive(Args, Debug)]
pub(crate) struct BenchLoadArgs {
    /// Where the model is.
    #[command(flatten)]
    model: ModelArgs,
    /// The requests that are served.
    #[command(flatten)]
    pub(crate) workload: WorkloadArgs,
    /// How its tenants are treated.
    #[command(flatten)]
    tenants: TenantArgs,
    /// How the engine serves it.
    #[command(flatten)]
    scheduling: SchedulingArgs,
    /// Keep N requests running instead of following the clock
    #[arg(
        long,
        value_name = "N",
        conflicts_with_all = ["rate", "arrivals"],
        help_heading = "Workload"
    )]
    concurrency: Option<NonZeroUsize>,
    /// One JSON object on stdout
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

impl BenchLoadArgs {
    /// The name of the model.
    pub(crate) fn model(&self) -> String {
        self.model.chosen().model
    }

    /// The model and how it serves the requests of these tenants.
    ///
    /// # Errors
    ///
    /// Names the flags that contradict each other, and a weight of an unknown tenant.
    pub(crate) fn chosen(&self, tenants: &Tenants) -> Result<Chosen> {
        let mut chosen = self.model.chosen();
        self.scheduling.lay_over(&mut chosen);
        chosen.llm.choices.tenants = self.tenants.tenants(tenants)?;
        chosen.resolve()
    }

    /// The value of `--concurrency`.
    pub(crate) fn concurrency(&self) -> Option<usize> {
        self.concurrency.map(NonZeroUsize::get)
    }
}
