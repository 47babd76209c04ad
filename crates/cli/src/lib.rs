//! The one binary: `pelton run`, `serve`, `pull`, `list`, `embed`, `inspect`, `convert`, `bench` and
//! their helpers.
//!
//! It is a library, so that the Python package can run the same command line; the binary calls [`main`].
//!
//! This is the roof of the house. It parses flags, builds the small configs of the crates below,
//! installs tracing, and turns whatever went wrong into one line. Nothing here computes: text goes
//! into [`pelton_llm`], events come out, and this crate decides where they are printed.
//!
//! **Architecture invariant:** data goes to stdout, everything else to stderr; so
//! `pelton run ... > file` holds the model's text and nothing more.
//!
//! **Architecture invariant:** every way to fail ends in one line `error: ...` and an exit code:
//! 2 for a bad input, 1 for a failure of our own or a full disk, 130 after Ctrl-C, 135 when a file
//! that is in use was cut short. A closed pipe is no failure.
#![forbid(unsafe_code)]

#[macro_use]
mod stderr;

mod args;
mod banner;
mod batch;
mod bench;
mod calibration;
mod config;
mod connections;
mod convert;
mod doctor;
mod embed;
mod eval;
mod failure;
mod flags;
mod hints;
mod inspect;
mod interrupt;
mod key;
mod list;
mod loaded;
mod logits;
mod memory;
mod mode;
mod model;
mod opened;
mod parse_tools;
mod plan;
mod progress;
mod prompt;
mod pull;
mod quantize;
mod quantize_gguf;
mod reference;
mod rm;
mod run;
mod sandbox;
mod serve;
mod show;
mod stats;
mod texts;
mod tokenize;
mod top;
mod units;
mod usage;
mod usage_report;

use std::ffi::OsString;
use std::io::{IsTerminal, Write};

use args::{Cli, Command, LogFormat};
use failure::Failure;

/// Reads any bytes as settings of `pelton serve` and as API keys, for the fuzz target `serve_yaml`.
#[doc(hidden)]
pub use config::try_bytes;
pub use opened::{NotOpened, Opened, open, setting_keys};

/// Processors that share an arena of the allocator: the work of models allocates next to nothing.
const PROCESSORS_PER_ARENA: usize = 4;

/// Runs a command line, whose first word is the name of the program, and returns the exit code.
pub fn main(words: impl IntoIterator<Item = OsString>) -> u8 {
    // Before anything takes memory, and before there are threads.
    let n_processors = std::thread::available_parallelism().map_or(1, usize::from);
    pelton_tensor::limit_arenas((n_processors / PROCESSORS_PER_ARENA).max(2));
    let memory_signal = pelton_tensor::handle_memory_signal();
    let words: Vec<OsString> = words.into_iter().collect();
    let cli = match Cli::read(&words) {
        Ok(cli) => cli,
        Err(error) if !error.use_stderr() => {
            // `--help` and `--version`: an answer, not an error.
            let printed = error.print().and_then(|()| std::io::stdout().flush());
            return printed.map_or_else(|error| Failure::stdout(&error).report(), |()| 0);
        }
        Err(error) => return usage::explain(&error, words).report(),
    };
    install_tracing(level(cli.verbose), cli.verbose == 0, cli.log_format);
    if let Err(error) = memory_signal {
        tracing::warn!(%error, "a lack of memory may end the program without its reason");
    }
    if let Err(error) = pelton_tensor::handle_file_signals() {
        tracing::warn!(%error, "a model file that is cut short will end the program without a word");
    }
    let outcome = match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Serve(args) => serve::serve(*args),
        Command::Key(command) => key::key(&command),
        Command::Top(args) => top::top(&args),
        Command::Usage(args) => usage_report::usage(&args),
        Command::Pull(args) => pull::pull(&args),
        Command::List(args) => list::list(&args),
        Command::Show(args) => show::show(&args),
        Command::Rm(args) => rm::rm(&args),
        Command::Embed(args) => embed::embed(&args),
        Command::Batch(args) => batch::batch(&args),
        Command::Inspect(args) => inspect::inspect(&args),
        Command::Plan(args) => plan::plan(&args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Convert(args) => convert::convert(&args),
        Command::Quantize(args) => quantize::quantize(&args),
        Command::Eval(args) => eval::eval(&args),
        Command::Logits(args) => logits::logits(&args),
        Command::Tokenize(args) => tokenize::tokenize(&args),
        Command::ParseTools(args) => parse_tools::parse_tools(&args),
        Command::Bench(command) => bench::bench(&command),
        Command::Completions(args) => reference::completions(&args),
        Command::Man(args) => reference::man(&args),
        Command::Openapi => reference::openapi(),
    };
    match outcome {
        Ok(()) => 0,
        Err(failure) => failure.report(),
    }
}

/// The level of logs for a number of `-v`.
fn level(verbose: u8) -> &'static str {
    match verbose {
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    }
}

/// Sends logs to stderr: those that `directives` let through, or `RUST_LOG` where it is set. Does
/// nothing where the process has another place for them already.
fn install_tracing(directives: &str, is_plain: bool, format: LogFormat) {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(directives));
    // A request is logged in both forms, of which one is let through.
    let other = match format {
        LogFormat::Text => "pelton_server::access_json=off",
        LogFormat::Json => "pelton_server::access_log=off",
    };
    let filter = filter.add_directive(other.parse().expect("invariant: a directive"));
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // An error of writing would be printed, which ends the process.
        .log_internal_errors(false)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    if format == LogFormat::Json {
        let objects = lines.with_ansi(false).json().flatten_event(true).with_span_list(false);
        let _ = objects.try_init();
        return;
    }
    let _ = match is_plain {
        // A warning to a person at work, not a log.
        true => lines.without_time().with_target(false).try_init(),
        false => lines.try_init(),
    };
}
