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

use std::io::Write;

use serde::Serialize;

use crate::args::BenchCommand;
use crate::failure::{Failure, Result};

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

/// Prints what was measured: as one JSON object, or as it renders itself.
///
/// # Errors
///
/// A standard output that takes nothing.
fn print<R: Serialize>(report: &R, render: fn(&R) -> String, as_json: bool) -> Result<()> {
    let text = if as_json {
        let json = serde_json::to_string(report);
        json.map_err(|error| Failure::internal(format!("cannot write JSON: {error}")))? + "\n"
    } else {
        render(report)
    };
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    written.map_err(|error| Failure::stdout(&error))
}
