//! Flags of `pelton eval`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;

use crate::flags::MachineArgs;

pub(super) const HELP_END: &str = "\
Examples:
  pelton eval model.gguf --text book.txt
  pelton eval ./small --reference ./large --text book.txt --json
  pelton eval ./small --reference ./large --text book.txt --max-kl 0.05 --max-ppl-increase 2

The text is scored in windows that overlap: each token once, and all but those of the first window
from at least WINDOW - STRIDE tokens before it. Both numbers stand in the output. A score is the log
probability that the same token has when it is generated. With --reference the same tokens go through
both models, whose vocabularies must be the same; the divergence is KL(reference || model) over the
whole vocabulary, in nats per token. Intervals hold 95 %, by bootstrap over windows.
The logits of a few rows lie in memory at a time, and the weights of both models. Ctrl-C ends early and
prints the figures of the windows that are done.

Exit codes: 0 done, 2 bad input, 3 a gate (--max-kl, --max-ppl-increase) is exceeded, 1 other failure,
130 after Ctrl-C.";

/// Flags of `pelton eval`.
#[derive(Args, Debug)]
pub(crate) struct EvalArgs {
    /// Folder, .gguf file, hub id (owner/name), or `embedded`
    pub(crate) model: String,
    /// Model to compare with, such as the one that MODEL was quantized from
    #[arg(long, value_name = "MODEL")]
    pub(crate) reference: Option<String>,
    /// File with the text, UTF-8
    #[arg(long, value_name = "FILE")]
    pub(crate) text: PathBuf,
    /// Score only the first N tokens of the text
    #[arg(long, value_name = "N")]
    limit: Option<NonZeroUsize>,
    /// Tokens of a window [default: 512, or the context where that is shorter]
    #[arg(long, value_name = "N")]
    pub(crate) window: Option<usize>,
    /// Tokens from one window to the next [default: half a window]
    #[arg(long, value_name = "N")]
    pub(crate) stride: Option<usize>,
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
    /// The value of `--limit`.
    pub(crate) fn limit(&self) -> Option<usize> {
        self.limit.map(NonZeroUsize::get)
    }
}

fn parse_bound(text: &str) -> Result<f64, String> {
    let bound = text.parse::<f64>().ok().filter(|bound| bound.is_finite() && *bound >= 0.0);
    bound.ok_or_else(|| "expected a number from 0 up".to_owned())
}
