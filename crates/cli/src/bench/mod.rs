//! `pelton bench`: how fast this machine is, and how much of that is used.

mod kernels;

use crate::args::{BenchArgs, BenchCommand};
use crate::failure::Result;

/// Runs the command.
pub(crate) fn bench(args: &BenchArgs) -> Result<()> {
    match &args.command {
        BenchCommand::Kernels(args) => kernels::run(args),
    }
}
