//! Development tasks.
//!
//! They link `tensor` and nothing above it, so that a fresh checkout has them in seconds. Tests
//! read what they write with the real loader.
#![forbid(unsafe_code)]

mod bench_model;
mod performance;
mod trial;

use clap::Parser;

/// Development tasks of Pelton.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask")]
enum Task {
    /// Write a GGUF file or a model folder with random weights in the shape of a published model.
    BenchModel(bench_model::Args),
    /// Measure this machine with each instruction set that it has, and write docs/performance.md.
    Performance(performance::Args),
    /// Try a built binary for a long time: determinism, soak, kill.
    Trial(trial::Args),
}

fn main() -> anyhow::Result<()> {
    match Task::parse() {
        Task::BenchModel(args) => bench_model::run(&args),
        Task::Performance(args) => performance::run(&args),
        Task::Trial(args) => trial::run(&args),
    }
}
