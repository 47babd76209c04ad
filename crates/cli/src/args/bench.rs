//! Flags of `pelton bench`.

use std::num::NonZeroUsize;

use clap::{Args, Subcommand};

const KERNELS_HELP_END: &str = "\
Examples:
  pelton bench kernels
  pelton bench kernels --filter \"matmul q8\" --threads 1
  pelton bench kernels --json > today.json

A call is timed in rounds; the time told is the median round, the spread what lies between the
quarters. Before and after each shape the ceilings of the machine are measured again, and a speed is
told as a share of the nearer one: memory by its bytes, arithmetic by its operations (a
multiplication and an addition are two). More than 100 % of memory means that the data fitted in
the caches. Ctrl-C ends with what was measured so far.";

/// Flags of `pelton bench`.
#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    /// What is measured.
    #[command(subcommand)]
    pub(crate) command: BenchCommand,
}

/// What can be measured.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Measure each operation as a share of what this machine can do
    #[command(after_help = KERNELS_HELP_END)]
    Kernels(BenchKernelsArgs),
}

/// Flags of `pelton bench kernels`.
#[derive(Args, Debug)]
pub(crate) struct BenchKernelsArgs {
    /// One JSON object on stdout: machine, ceilings, rows
    #[arg(long)]
    pub(crate) json: bool,
    /// Threads that compute [default: the processors this process may use]
    #[arg(long, env = "PELTON_THREADS", value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Only lines that hold each of these words, such as "matmul q8 8192"
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) filter: String,
    /// Seconds per measurement, from 0.001 to 60 [default: 0.2]
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    seconds: Option<f64>,
    /// Tiny shapes and few rounds: shows that everything runs, not how fast
    #[arg(long)]
    pub(crate) quick: bool,
}

impl BenchKernelsArgs {
    /// The value of `--threads`.
    pub(crate) fn threads(&self) -> Option<usize> {
        self.threads.map(NonZeroUsize::get)
    }

    /// Seconds per measurement.
    pub(crate) fn seconds(&self) -> f64 {
        self.seconds.unwrap_or(if self.quick { 0.001 } else { 0.2 })
    }
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.001..=60.0).contains(seconds));
    seconds.ok_or_else(|| "expected seconds from 0.001 to 60".to_owned())
}
