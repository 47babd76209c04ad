//! The one binary: `pelton run`, `pelton serve`, `pelton embed`, `pelton inspect`, `pelton convert`, `pelton bench`
//! and their helpers.
//!
//! This is the roof of the house. It parses flags, builds the small configs of the crates below,
//! installs tracing, and turns whatever went wrong into one line. Nothing here computes: text goes
//! into [`pelton_llm`], events come out, and this crate decides where they are printed.
//!
//! **Architecture invariant:** data goes to stdout, everything else to stderr; so
//! `pelton run ... > file` holds the model's text and nothing more.
//!
//! **Architecture invariant:** every way to fail ends in one line `error: ...` and an exit code:
//! 2 for a bad input, 1 for a failure of our own, 130 after Ctrl-C, 135 when a file that is in use
//! was cut short. A closed pipe is no failure.
#![forbid(unsafe_code)]

mod args;
mod bench;
mod config;
mod convert;
mod embed;
mod failure;
mod flags;
mod inspect;
mod interrupt;
mod loaded;
mod logits;
mod memory;
mod mode;
mod model;
mod progress;
mod prompt;
mod run;
mod sandbox;
mod serve;
mod stats;
mod texts;
mod tokenize;
mod units;

use std::io::IsTerminal;
use std::process::ExitCode;

use args::{Cli, Command};
use clap::Parser;
use failure::Failure;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if !error.use_stderr() => {
            // `--help` and `--version`: an answer, not an error.
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        Err(error) => return Failure::from_clap(&error).report(),
    };
    install_tracing(cli.verbose);
    if let Err(error) = pelton_tensor::handle_file_signals() {
        tracing::warn!(%error, "a model file that is cut short will end the program without a word");
    }
    let outcome = match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Serve(args) => serve::serve(*args),
        Command::Embed(args) => embed::embed(&args),
        Command::Inspect(args) => inspect::inspect(&args),
        Command::Convert(args) => convert::convert(&args),
        Command::Logits(args) => logits::logits(&args),
        Command::Tokenize(args) => tokenize::tokenize(&args),
        Command::Bench(command) => bench::bench(&command),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Sends logs to stderr: warnings by default, more with `-v`, anything with `RUST_LOG`.
fn install_tracing(verbose: u8) {
    use tracing_subscriber::EnvFilter;
    let level = match verbose {
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    if verbose == 0 {
        // A warning to a person at work, not a log.
        lines.without_time().with_target(false).init();
    } else {
        lines.init();
    }
}
