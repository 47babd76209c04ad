//! Flags of `pelton doctor`.

use clap::Args;

use crate::flags::ThreadsArgs;

pub(super) const HELP_END: &str = "\
Examples:
  pelton doctor
  pelton doctor --threads 8 --json > machine.json
  pelton doctor --no-measure          what the system says about itself, without measuring

Measuring takes about half a minute: reads of memory by number of threads, arithmetic in registers, a
meeting of all threads, products of each weight format, and reads of a file of 128 MiB that is written
beside the record and removed. The record is kept in ~/.cache/pelton/machine.json, and `pelton plan` uses
it; PELTON_TUNING=off keeps none. Rounds that differ by more than 10 % mark the record as noisy.

Run it while nothing else runs. Ctrl-C ends it and keeps no record.";

/// Flags of `pelton doctor`.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Threads that compute.
    #[command(flatten)]
    threads: ThreadsArgs,
    /// Measure nothing: facts and advice alone
    #[arg(long)]
    pub(crate) no_measure: bool,
    /// Tiny sizes: checks that everything runs, measures nothing and keeps no record
    #[arg(long, conflicts_with = "no_measure")]
    pub(crate) quick: bool,
    /// One JSON object on stdout: machine, measured, advice
    #[arg(long)]
    pub(crate) json: bool,
}

impl DoctorArgs {
    /// The value of `--threads`.
    pub(crate) fn threads(&self) -> Option<usize> {
        self.threads.chosen().threads
    }
}
