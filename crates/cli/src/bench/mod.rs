//! `pelton bench`: how fast this machine runs it, and how fast it could.

mod ceilings;
mod model;
mod samples;
mod stop;

use crate::args::BenchCommand;
use crate::failure::Result;

/// Runs the command.
pub(crate) fn bench(command: &BenchCommand) -> Result<()> {
    match command {
        BenchCommand::Model(args) => model::measure(args),
    }
}
