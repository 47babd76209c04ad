//! Flags of `pelton bench spec`.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use pelton_llm::{SpecConfig, SpecMethod};

use crate::failure::{Failure, Result};
use crate::flags::{Chosen, DraftArgs, ModelArgs, SpecChoice};

pub(super) const SPEC_HELP_END: &str = "\
Examples:
  pelton bench spec
  pelton bench spec -m model.gguf --methods suffix,draft --draft-model small.gguf --batch 1,4
  pelton bench spec -m model.gguf --prompts mine.jsonl --temperature 0.7 --json > figures.json

One engine holds every method, and each request names the method that drafts for it. Every round
measures all methods in turn with the same weights and starts with another one. The table gives
medians, and the lowest and highest ratio to plain decoding in the same round. If the tokens differ
from those of plain decoding, the command says so and exits with code 1.
--prompts reads one text per line, or one object per line with `prompt` or `messages`, and optionally
`answer` or `schema`. The model is then forced to give that answer, so that the acceptance of drafts
depends on the task and not on the model, or an answer of that JSON schema. The built-in texts that
repeat, edit and quote have given answers; `ruled` are the free texts under a rule that changes at
every step, and `schema` the free texts as a string of a JSON object. Speeds count from the first token
of the last request of a batch. A method that learns over requests has read the same texts in earlier
rounds. Ctrl-C ends early and prints the results so far.";

/// Flags of `pelton bench spec`.
#[derive(Args, Debug)]
pub(crate) struct BenchSpecArgs {
    /// Where the model is.
    #[command(flatten)]
    model: ModelArgs,
    /// Methods to compare with plain decoding, as for --spec [default: all that can run]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = SpecChoice::from_str)]
    pub(crate) methods: Vec<SpecChoice>,
    /// Draft model, and how far it drafts.
    #[command(flatten)]
    draft: DraftArgs,
    /// Texts to continue, one per line [default: a few that repeat themselves, edit code, quote, or
    /// run free, with and without a rule]
    #[arg(long, value_name = "FILE")]
    pub(crate) prompts: Option<PathBuf>,
    /// Requests answered at the same time
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,8")]
    batch: Vec<NonZeroUsize>,
    /// Most tokens of each answer, at least 3
    #[arg(short = 'n', long, value_name = "N", default_value = "128", value_parser = max_tokens)]
    max_tokens: NonZeroUsize,
    /// Randomness: 0 always takes the likeliest token
    #[arg(long, value_name = "T", default_value = "0", allow_negative_numbers = true)]
    pub(crate) temperature: f32,
    /// Number of rounds
    #[arg(long, value_name = "N", default_value = "5")]
    rounds: NonZeroUsize,
    /// One JSON object on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

impl BenchSpecArgs {
    /// The model with every method of `--methods`, for as many requests as `--batch` says.
    ///
    /// # Errors
    ///
    /// `off` or a method twice among the methods, or two draft models.
    pub(crate) fn chosen(&self) -> Result<Chosen> {
        let mut chosen = self.model.chosen();
        self.draft.lay_over(&mut chosen);
        let mut methods: Vec<SpecMethod> = Vec::new();
        let mut exit_layers = None;
        for choice in &self.methods {
            if choice.method == SpecMethod::Off {
                return Err(Failure::new(
                    "`--methods`: plain decoding (`off`) is always measured; leave it out",
                ));
            }
            if methods.contains(&choice.method) {
                return Err(Failure::new(format!(
                    "`--methods`: `{choice}` is the second of its kind"
                )));
            }
            methods.push(choice.method);
            exit_layers = exit_layers.or(choice.exit_layers);
            if choice.draft_model.is_some() {
                chosen.drafter.spec = Some(choice.clone());
            }
        }
        if methods.is_empty() {
            methods = all_that_can_run(chosen.drafter.model.is_some());
        }
        let mut chosen = chosen.resolve()?;
        chosen.llm.choices.max_running = self.batches().last().copied().unwrap_or(1);
        chosen.llm.spec.method = SpecMethod::Off;
        chosen.llm.spec.exit_layers = exit_layers;
        chosen.llm.further_methods = methods;
        Ok(chosen)
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

/// Reads tokens of an answer. Speeds count from the first token on, and nothing is drafted for the
/// last.
fn max_tokens(text: &str) -> std::result::Result<NonZeroUsize, String> {
    let n = text.parse::<NonZeroUsize>().ok().filter(|n| n.get() >= 3);
    n.ok_or_else(|| "expected 3 tokens or more: shorter answers have no drafts".to_owned())
}

/// Every method that needs nothing, `draft` where there is a model, and `auto`.
fn all_that_can_run(has_draft_model: bool) -> Vec<SpecMethod> {
    let can_run = |method: &SpecMethod| match method {
        // The caller must say after how many layers to draft.
        SpecMethod::Off | SpecMethod::EarlyExit => false,
        SpecMethod::Draft => has_draft_model,
        &method => !SpecConfig { method, ..SpecConfig::default() }.proposers().is_empty(),
    };
    SpecMethod::ALL.iter().copied().filter(can_run).collect()
}
