//! Development tasks.
#![forbid(unsafe_code)]

mod bench_model;
mod export;

use clap::Parser;

/// Development tasks of Pelton.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask")]
enum Task {
    /// Write a model folder as one GGUF file.
    ExportGguf(export::Args),
    /// Write a GGUF file or a model folder with random weights in the shape of a published model.
    BenchModel(bench_model::Args),
}

fn main() -> anyhow::Result<()> {
    match Task::parse() {
        Task::ExportGguf(args) => export::run(&args),
        Task::BenchModel(args) => bench_model::run(&args),
    }
}
