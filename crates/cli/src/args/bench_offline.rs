//! Flags of `pelton bench offline`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use pelton_bench::offline::{Config, Lengths};

use super::workload::parse_lengths;
use crate::flags::ModelArgs;

pub(super) const OFFLINE_HELP_END: &str = "\
Examples:
  pelton bench offline
  pelton bench offline -m model.gguf --batch 1,8,32 --lengths 128:128,512:512 --rounds 9
  pelton bench offline -m model.gguf --json > before.json

All requests of a batch arrive together. Prompts, generation while all generate, and both together are
reported apart, with the tails of the time to the first token and of the time between two tokens over all
requests; nothing is trimmed. Each round measures everything once. Without --lengths, lengths beyond the
model's context and batches beyond the memory are left out, and the report says so. Results go to stdout,
progress to stderr. Ctrl-C ends early and prints the results so far.";

/// Flags of `pelton bench offline`.
#[derive(Args, Debug)]
pub(crate) struct BenchOfflineArgs {
    /// Where the model is.
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Requests at once [default: 1,8,32,128]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    batch: Vec<NonZeroUsize>,
    /// Tokens of prompts and of answers [default: 128:128,512:512,2048:1024]
    #[arg(long, value_name = "IN:OUT", value_delimiter = ',', value_parser = parse_lengths)]
    lengths: Vec<(usize, usize)>,
    /// Number of rounds
    #[arg(long, value_name = "N", default_value = "5")]
    rounds: NonZeroUsize,
    /// Also time each operation of a step, and write the steps for Chrome's profiler or Perfetto
    #[arg(long, value_name = "FILE")]
    pub(crate) profile: Option<PathBuf>,
    /// One JSON object on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

impl BenchOfflineArgs {
    /// The shapes to measure.
    pub(crate) fn config(&self) -> Config {
        let lengths = self.lengths.iter().map(|&(input, output)| Lengths { input, output });
        Config {
            batches: self.batch.iter().map(|n| n.get()).collect(),
            lengths: lengths.collect(),
            rounds: self.rounds.get(),
            profile: self.profile.is_some(),
        }
    }
}
