//! `trial`: long trials of a built `pelton serve`, as a process among hostile clients.
//!
//! ```text
//! determinism   the same requests again and again under each policy: one answer each
//! soak          mixed traffic for a time: memory, files and threads stay level
//! limits        few open files, little address space: it answers, slowly or with 429
//! kill          kill -9 at random moments of start and service: every restart serves the same
//! hostile       one hostile client after the other: each its right error, neighbours equal, memory level
//! crowd         1,000 streams that wait beside 128 that run, on two processors: right answers
//! reload        a model loaded anew again and again: no request fails
//! ```

mod client;
mod crowd;
mod determinism;
mod hostile;
mod kill;
mod limits;
mod look;
mod neighbours;
mod reload;
mod server;
mod soak;

use std::path::PathBuf;

/// Tries a built binary for a long time.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    trial: Trial,
    /// The binary to try.
    #[arg(long, default_value = "target/release/pelton", global = true)]
    binary: PathBuf,
    /// Seed of the clients and of the moments.
    #[arg(long, default_value_t = 1, global = true)]
    seed: u64,
}

#[derive(clap::Subcommand, Debug)]
enum Trial {
    /// Ask the same among hostile neighbours, under each policy, and compare the answers.
    Determinism {
        /// Times that each request is asked under each policy.
        #[arg(long, default_value_t = 1000)]
        times: usize,
    },
    /// Serve mixed traffic and watch memory, open files and threads.
    Soak {
        /// Length, after a fifth as long to warm up.
        #[arg(long, default_value_t = 1800)]
        seconds: u64,
    },
    /// Serve with few open files, little address space, or read-only files.
    Limits {
        /// Length under each limit.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
    },
    /// Send hostile requests of every kind, and watch a neighbour and the memory.
    Hostile(hostile::Args),
    /// Keep streams waiting beside streams that run, on two processors.
    Crowd {
        /// Streams that wait.
        #[arg(long, default_value_t = 1000)]
        waiting: usize,
    },
    /// Load the model anew while clients ask it.
    Reload(reload::Args),
    /// Kill the server at random moments and start it again.
    Kill {
        /// Number of kills.
        #[arg(long, default_value_t = 200)]
        times: usize,
        /// Model file that is served with packed weights beside it.
        #[arg(long, default_value = "crates/cli/model/story-draft-q8_0.gguf")]
        model: PathBuf,
    },
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    match &args.trial {
        Trial::Determinism { times } => determinism::run(&args.binary, args.seed, *times),
        Trial::Soak { seconds } => soak::run(&args.binary, args.seed, *seconds),
        Trial::Limits { seconds } => limits::run(&args.binary, args.seed, *seconds),
        Trial::Hostile(how) => hostile::run(&args.binary, how),
        Trial::Crowd { waiting } => crowd::run(&args.binary, *waiting),
        Trial::Reload(how) => reload::run(&args.binary, how),
        Trial::Kill { times, model } => kill::run(&args.binary, args.seed, *times, model),
    }
}
