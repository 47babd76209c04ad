//! Flags of `pelton bench load`.

use std::num::NonZeroUsize;

use clap::Args;

use super::workload::WorkloadArgs;
use super::{ModelArgs, SchedulingArgs};

pub(super) const LOAD_HELP_END: &str = "\
Examples:
  pelton bench load --scale 0.1
  pelton bench load -m model.gguf --workload shared-prefix -n 100
  pelton bench load -m model.gguf --workload mixed --scale 0.25 --rate 0.2 --json
  pelton bench load -m model.gguf --workload overload --concurrency 32

The requests of `pelton bench sim` against the real engine in this process, with the same report.
They come by the clock at the stated rate, whether or not the engine keeps up; with --concurrency
each comes when another has ended. Prompts are random tokens, answers as long as the workload says.
Ctrl-C ends with what was served so far.";

/// Flags of `pelton bench load`.
#[derive(Args, Debug)]
pub(crate) struct BenchLoadArgs {
    /// Where the model is.
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// What is served.
    #[command(flatten)]
    pub(crate) workload: WorkloadArgs,
    /// How the engine serves it.
    #[command(flatten)]
    pub(crate) scheduling: SchedulingArgs,
    /// Keep N requests going instead of following the clock
    #[arg(long, value_name = "N", conflicts_with = "rate", help_heading = "Workload")]
    concurrency: Option<NonZeroUsize>,
    /// One JSON object on stdout
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

impl BenchLoadArgs {
    /// The value of `--concurrency`.
    pub(crate) fn concurrency(&self) -> Option<usize> {
        self.concurrency.map(NonZeroUsize::get)
    }
}
