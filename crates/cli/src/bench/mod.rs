//! `pelton bench`: how fast this machine is, and how much of that is used.

mod ceilings;
mod kernels;
mod load;
mod model;
mod samples;
mod served;
mod sim;
mod spec;
mod tuned;

use crate::args::BenchCommand;
use crate::failure::Result;

/// Runs the command.
pub(crate) fn bench(command: &BenchCommand) -> Result<()> {
    match command {
        BenchCommand::Kernels(args) => kernels::run(args),
        BenchCommand::Model(args) => model::measure(args),
        BenchCommand::Sim(args) => sim::simulate(args),
        BenchCommand::Load(args) => load::load(args),
        BenchCommand::Spec(args) => spec::measure(args),
    }
}
