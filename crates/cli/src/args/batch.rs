//! Flags of `pelton batch`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;

use crate::failure;
use crate::flags::{AnswerArgs, Chosen, ModelArgs, SchedulingArgs, TemplateArgs, VectorArgs};

pub(crate) const HELP_END: &str = "\
Examples:
  pelton batch requests.jsonl results.jsonl -m ./my-model
  pelton batch pairs.jsonl scores.jsonl -m BAAI/bge-reranker-base --json

A line is {\"custom_id\": \"a\", \"method\": \"POST\", \"url\": \"/v1/chat/completions\", \"body\": {..}}; the body
is that of the same request to `pelton serve`, and so is the answer. Results are lines in the order in
which answers end, each with the number of its line. A bad line fails alone.

Run again after Ctrl-C, kill -9 or a full disk, the command keeps the results that are there and answers
the other lines.";

/// Flags of `pelton batch`.
#[derive(Args, Debug)]
pub(crate) struct BatchArgs {
    /// Requests, one JSON object per line; `-` reads standard input
    pub(crate) input: PathBuf,
    /// Results; those of an earlier run of the same requests are kept
    pub(crate) output: PathBuf,
    /// Lines that are asked at the same time [default: twice --max-running]
    #[arg(long, value_name = "N", help_heading = "Batch")]
    parallel: Option<NonZeroUsize>,
    /// Longest line, in MiB
    #[arg(long, value_name = "MIB", default_value = "16", help_heading = "Batch")]
    pub(crate) max_line: NonZeroUsize,
    /// Print one JSON object on stdout: numbers of lines, and how the run ended
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
    /// Print no summary
    #[arg(short, long, help_heading = "Output")]
    pub(crate) quiet: bool,
    /// Where the model is.
    #[command(flatten)]
    model: ModelArgs,
    /// How conversations are laid out.
    #[command(flatten)]
    template: TemplateArgs,
    /// How answers are taken apart.
    #[command(flatten)]
    answers: AnswerArgs,
    /// How vectors are made.
    #[command(flatten)]
    vectors: VectorArgs,
    /// How lines share the machine.
    #[command(flatten)]
    scheduling: SchedulingArgs,
}

impl BatchArgs {
    /// The model and how it is loaded and run.
    ///
    /// # Errors
    ///
    /// Names the flags that contradict each other.
    pub(crate) fn chosen(&self) -> failure::Result<Chosen> {
        let mut chosen = self.model.chosen();
        self.template.lay_over(&mut chosen);
        self.answers.lay_over(&mut chosen);
        self.vectors.lay_over(&mut chosen);
        self.scheduling.lay_over(&mut chosen);
        chosen.resolve()
    }

    /// Lines that are asked at the same time: enough that a place never stays empty.
    pub(crate) fn n_parallel(&self, chosen: &Chosen) -> usize {
        self.parallel.map_or(2 * chosen.llm.choices.max_running, NonZeroUsize::get)
    }
}
