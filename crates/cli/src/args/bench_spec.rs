//! Flags of `pelton bench spec`.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

use super::{ModelArgs, SpecChoice};

pub(super) const SPEC_HELP_END: &str = "\
Examples:
  pelton bench spec
  pelton bench spec -m model.gguf --methods suffix,draft --draft-model small.gguf --batch 1,4
  pelton bench spec -m model.gguf --prompts mine.jsonl --temperature 0.7 --json > figures.json

One engine holds every method, and each request says which one guesses for it, so all are measured
with the same weights in turn, once per round, and each round begins with another one. Told are
medians, with the lowest and the highest ratio to the plain run of the same round. The tokens are
compared too: where they are not those of plain decoding it says so and ends with code 1.
--prompts takes a text per line, or objects per line with `prompt` or `messages`, and perhaps `answer`:
the model is then held to that answer, so that how often guesses are right depends on the task and not
on the model, which takes its own time for each token; of the built-in texts those that repeat, edit
and quote are answered so. `ruled` are the free texts under a rule that changes at every step. Speeds
count from the moment at which every request of a batch has its first token. A method that learns
over requests has read the same texts in the rounds before. Ctrl-C ends early with what was measured.";

/// Flags of `pelton bench spec`.
#[derive(Args, Debug)]
pub(crate) struct BenchSpecArgs {
    /// Where the model is.
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Methods to compare with plain decoding, as for --spec [default: all that can run]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = SpecChoice::from_str)]
    pub(crate) methods: Vec<SpecChoice>,
    /// The model that drafts under `draft` and `auto`; of the same vocabulary
    #[arg(long, env = "PELTON_DRAFT_MODEL", value_name = "MODEL")]
    pub(crate) draft_model: Option<String>,
    /// Most tokens guessed at once for one request
    #[arg(long, env = "PELTON_SPEC_MAX", value_name = "N", default_value = "8")]
    spec_max: NonZeroUsize,
    /// Texts to go on from, a line each [default: a few that repeat themselves, edit code, quote,
    /// or run free, with and without a rule]
    #[arg(long, value_name = "FILE")]
    pub(crate) prompts: Option<PathBuf>,
    /// Requests answered at once
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,8")]
    batch: Vec<NonZeroUsize>,
    /// Most tokens of each answer
    #[arg(short = 'n', long, value_name = "N", default_value = "128")]
    max_tokens: NonZeroUsize,
    /// Randomness: 0 always takes the likeliest token
    #[arg(long, value_name = "T", default_value = "0", allow_negative_numbers = true)]
    pub(crate) temperature: f32,
    /// How often everything is measured
    #[arg(long, value_name = "N", default_value = "5")]
    rounds: NonZeroUsize,
    /// One JSON object on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

impl BenchSpecArgs {
    /// The value of `--spec-max`.
    pub(crate) fn spec_max(&self) -> usize {
        self.spec_max.get()
    }

    /// The values of `--batch`, each once.
    pub(crate) fn batches(&self) -> Vec<usize> {
        let mut batches: Vec<usize> = self.batch.iter().map(|n| n.get()).collect();
        batches.sort_unstable();
        batches.dedup();
        batches
    }

    /// The value of `--max-tokens`.
    pub(crate) fn max_tokens(&self) -> usize {
        self.max_tokens.get()
    }

    /// The value of `--rounds`.
    pub(crate) fn rounds(&self) -> usize {
        self.rounds.get()
    }
}
