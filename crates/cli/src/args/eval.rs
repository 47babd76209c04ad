//! Flags of `pelton eval`.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use pelton_bench::quality::ab::{Answers, Bounds};

use crate::flags::MachineArgs;

pub(super) const HELP_END: &str = "\
Examples:
  pelton eval model.gguf --text book.txt
  pelton eval ./small --reference ./large --text book.txt --json
  pelton eval ./small --reference ./large --text book.txt --max-kl 0.05 --max-ppl-increase 2
  pelton eval ./large --quantize q4_k --reference ./large --text book.txt
  pelton eval ab ./large ./small --text book.txt --html report.html
  pelton eval tasks ./small questions.jsonl
  pelton eval needle ./small --text book.txt

The text is scored in windows that overlap: each token once, and all but those of the first window
from at least WINDOW - STRIDE tokens before it. Both numbers stand in the output. A score is the log
probability that the same token has when it is generated. With --reference the same tokens go through
both models, whose vocabularies must be the same; the divergence is KL(reference || model) over the
whole vocabulary, in nats per token. Intervals hold 95 %, by bootstrap over windows.
The logits of a few rows lie in memory at a time, and the weights of both models. Ctrl-C ends early and
prints the figures of the windows that are done.

Exit codes: 0 done, 2 bad input, 3 a gate (--max-kl, --max-ppl-increase) is exceeded, 1 other failure,
130 after Ctrl-C.";

const AB_HELP_END: &str = "\
Examples:
  pelton eval ab ./large ./small --text book.txt --html report.html
  pelton eval ab ./large ./small --text book.txt --max-kl 0.05 --max-ppl-increase 2 --json

Quality is measured as `pelton eval B --reference A` does. Then both continue the same pieces of the
text, each time with the likeliest token and in turns: answers are compared token by token, and the
speeds of a round are those of the same minute. Weights are counted as they lie in memory.

Exit codes: 0 done, 2 bad input, 3 a gate (--max-kl, --max-ppl-increase) is exceeded, 1 other failure,
130 after Ctrl-C.";

const TASKS_HELP_END: &str = "\
Examples:
  pelton eval tasks model.gguf arc-easy.jsonl hellaswag.jsonl --limit 200

A line is a JSON object. The question is `query`, `question`, `question_stem`, `ctx`, `context` or
`prompt`. With `choices` or `endings`, a list of texts or `text` and `label`, the right one is `gold`,
`label`, `answerKey` or `answer`: a number from 0, a label, or a letter. Without, the right answer is
`target`, `targets`, `answer` or `answers`, a text or several, and `until` lists the texts that end an
answer, a new line by default. Other fields are ignored.

A choice counts by the sum of its log probabilities, and once more per byte. A bad line is refused by
its number before anything is asked.";

/// The measurements beside that of one text.
#[derive(Debug, Subcommand)]
pub(crate) enum EvalCommand {
    /// Compare B with A, which it is meant to replace: speed, memory, quality, exactness
    #[command(after_help = AB_HELP_END)]
    Ab(Box<EvalAbArgs>),
    /// Ask questions with known answers: multiple choice and exact matches
    #[command(after_help = TASKS_HELP_END)]
    Tasks(Box<EvalTasksArgs>),
    /// Hide a sentence at depths of a long text, and ask for it
    Needle(Box<EvalNeedleArgs>),
}

/// The text that is scored.
#[derive(Args, Debug)]
pub(crate) struct ScoredArgs {
    /// Score only the first N tokens of the text
    #[arg(long, value_name = "N")]
    limit: Option<NonZeroUsize>,
    /// Tokens of a window [default: 512, or the context where that is shorter]
    #[arg(long, value_name = "N")]
    pub(crate) window: Option<usize>,
    /// Tokens from one window to the next [default: half a window]
    #[arg(long, value_name = "N")]
    pub(crate) stride: Option<usize>,
}

impl ScoredArgs {
    /// The value of `--limit`.
    pub(crate) fn limit(&self) -> Option<usize> {
        self.limit.map(NonZeroUsize::get)
    }
}

/// Flags of `pelton eval`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct EvalArgs {
    /// Another measurement than that of one text.
    #[command(subcommand)]
    pub(crate) command: Option<EvalCommand>,
    /// Folder, .gguf file, hub id (owner/name), or `embedded`
    #[arg(required = true)]
    model: Option<String>,
    /// Model to compare with, such as the one that MODEL was quantized from; its activations have groups
    /// of 32 whatever `--activation-group` says, and `--quantize` is not for it
    #[arg(long, value_name = "MODEL")]
    pub(crate) reference: Option<String>,
    /// File with the text, UTF-8
    #[arg(long, value_name = "FILE", required = true)]
    text: Option<PathBuf>,
    /// Which tokens, in which windows.
    #[command(flatten)]
    pub(crate) scored: ScoredArgs,
    /// Fail with exit code 3 if the divergence from the reference is larger, in nats per token
    #[arg(long, value_name = "NATS", requires = "reference", value_parser = parse_bound)]
    #[arg(help_heading = "Gates")]
    pub(crate) max_kl: Option<f64>,
    /// Fail with exit code 3 if the perplexity is more than this percentage above the reference's
    #[arg(long, value_name = "PERCENT", requires = "reference", value_parser = parse_bound)]
    #[arg(help_heading = "Gates")]
    pub(crate) max_ppl_increase: Option<f64>,
    /// Threads, arithmetic, keys and values, context.
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
    /// One JSON object on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

impl EvalArgs {
    /// The model.
    pub(crate) fn model(&self) -> &str {
        self.model.as_deref().expect("invariant: required without a subcommand")
    }

    /// The file of the text.
    pub(crate) fn text(&self) -> &Path {
        self.text.as_deref().expect("invariant: required without a subcommand")
    }
}

/// Flags of `pelton eval ab`.
#[derive(Args, Debug)]
pub(crate) struct EvalAbArgs {
    /// The model that is there: folder, .gguf file, hub id, or `embedded`
    pub(crate) a: String,
    /// The model that is meant to replace it, which alone is rounded by `--quantize`
    pub(crate) b: String,
    /// File with the text, UTF-8
    #[arg(long, value_name = "FILE")]
    pub(crate) text: PathBuf,
    /// Which tokens, in which windows.
    #[command(flatten)]
    pub(crate) scored: ScoredArgs,
    /// Pieces of the text that both models continue
    #[arg(long, value_name = "N", default_value = "8", help_heading = "Answers")]
    prompts: NonZeroUsize,
    /// Tokens of each piece
    #[arg(long, value_name = "N", default_value = "128", help_heading = "Answers")]
    prompt_tokens: NonZeroUsize,
    /// Tokens of each continuation
    #[arg(long, value_name = "N", default_value = "64", help_heading = "Answers")]
    answer_tokens: NonZeroUsize,
    /// Fail with exit code 3 if the divergence of B from A is larger, in nats per token
    #[arg(long, value_name = "NATS", value_parser = parse_bound, help_heading = "Gates")]
    max_kl: Option<f64>,
    /// Fail with exit code 3 if the perplexity of B is more than this percentage above that of A
    #[arg(long, value_name = "PERCENT", value_parser = parse_bound, help_heading = "Gates")]
    max_ppl_increase: Option<f64>,
    /// Threads, arithmetic, keys and values, context.
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
    /// Write a page with plots
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// One JSON object on stdout, in the common format of `pelton bench`
    #[arg(long)]
    pub(crate) json: bool,
}

impl EvalAbArgs {
    /// Prompts and continuations.
    pub(crate) fn answers(&self) -> Answers {
        Answers {
            n_prompts: self.prompts.get(),
            prompt_tokens: self.prompt_tokens.get(),
            answer_tokens: self.answer_tokens.get(),
        }
    }

    /// The gates.
    pub(crate) fn bounds(&self) -> Bounds {
        Bounds { kl: self.max_kl, perplexity_increase_percent: self.max_ppl_increase }
    }
}

/// Flags of `pelton eval tasks`.
#[derive(Args, Debug)]
pub(crate) struct EvalTasksArgs {
    /// Folder, .gguf file, hub id (owner/name), or `embedded`
    pub(crate) model: String,
    /// Files with a question per line
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Ask only the first N questions of each file
    #[arg(long, value_name = "N")]
    limit: Option<NonZeroUsize>,
    /// Threads, arithmetic, keys and values, context.
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
    /// One JSON object on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

impl EvalTasksArgs {
    /// The value of `--limit`.
    pub(crate) fn limit(&self) -> Option<usize> {
        self.limit.map(NonZeroUsize::get)
    }
}

/// Flags of `pelton eval needle`.
#[derive(Args, Debug)]
pub(crate) struct EvalNeedleArgs {
    /// Folder, .gguf file, hub id (owner/name), or `embedded`
    pub(crate) model: String,
    /// File with the text that sentences are hidden in, UTF-8
    #[arg(long, value_name = "FILE")]
    pub(crate) text: PathBuf,
    /// Tokens of the whole, question and answer included [default: 512, 1024 and so on to the context]
    #[arg(long, value_name = "N,N,...", value_delimiter = ',')]
    pub(crate) lengths: Vec<usize>,
    /// Shares of the text before the sentence, in percent
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', default_value = "0,25,50,75,100")]
    pub(crate) depths: Vec<u32>,
    /// Sentences for each length and depth
    #[arg(long, value_name = "N", default_value = "4")]
    trials: NonZeroUsize,
    /// Threads, arithmetic, keys and values, context.
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
    /// One JSON object on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

impl EvalNeedleArgs {
    /// The value of `--trials`.
    pub(crate) fn trials(&self) -> usize {
        self.trials.get()
    }
}

fn parse_bound(text: &str) -> Result<f64, String> {
    let bound = text.parse::<f64>().ok().filter(|bound| bound.is_finite() && *bound >= 0.0);
    bound.ok_or_else(|| "expected a number from 0 up".to_owned())
}
