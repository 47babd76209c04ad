//! `pelton bench`: how fast this machine is, and how much of that is used.

mod ceilings;
mod kernels;
mod model;
mod samples;
mod tuned;

use crate::args::BenchCommand;
use crate::failure::Result;

/// Runs the command.
pub(crate) fn bench(command: &BenchCommand) -> Result<()> {
    match command {
        BenchCommand::Kernels(args) => kernels::run(args),
        BenchCommand::Model(args) => model::measure(args),
    }
}
