//! Flags of `pelton embed`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;

use crate::flags::{Chosen, ComputeArgs, VectorArgs};

pub(crate) const HELP_END: &str = "\
Examples:
  pelton embed BAAI/bge-small-en-v1.5 \"a cat\" \"a dog\" \"a car\" --similarity
  pelton embed ./my-model --file lines.txt --json > vectors.json
  git log --format=%s | pelton embed model.gguf -
  pelton embed Qwen/Qwen3-Embedding-0.6B \"capital of France\" --prompt query --dimensions 256

Prints one line of numbers per text. Works with encoders (BERT, RoBERTa, ModernBERT, ..) and decoders;
the model's files say how the rows of a text become its vector, and --pooling overrides them.";

/// Flags of `pelton embed`.
#[derive(Args, Debug)]
pub(crate) struct EmbedArgs {
    /// Folder, .gguf file or hub id (owner/name)
    pub(crate) model: String,
    /// Texts; `-` reads one text per line from standard input
    #[arg(required_unless_present = "file")]
    pub(crate) texts: Vec<String>,
    /// Texts of a file, one per line, after those of the command line
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// One JSON object on stdout: vectors, tokens of each text, facts about the model
    #[arg(long)]
    pub(crate) json: bool,
    /// Print the cosine similarity of each pair of texts instead of vectors
    #[arg(long)]
    pub(crate) similarity: bool,
    /// Keep only the first N elements of each vector, for models trained for it
    #[arg(long, value_name = "N")]
    pub(crate) dimensions: Option<NonZeroUsize>,
    /// Name of the prompt put before each text [default: what the model's files say]
    #[arg(long, value_name = "NAME")]
    pub(crate) prompt: Option<String>,
    /// Cut texts that are too long instead of refusing them
    #[arg(long)]
    pub(crate) truncate: bool,
    /// How vectors are made.
    #[command(flatten)]
    vectors: VectorArgs,
    /// How the model is computed.
    #[command(flatten)]
    compute: ComputeArgs,
    /// Longest text, in tokens [default: what the model declares, at most 8192]
    #[arg(long, alias = "max-tokens", value_name = "N")]
    max_context: Option<NonZeroUsize>,
}

impl EmbedArgs {
    /// How the model is loaded and its vectors are made.
    pub(crate) fn chosen(&self) -> Chosen {
        let mut chosen = self.vectors.chosen();
        self.compute.lay_over(&mut chosen);
        chosen.llm.max_context = self.max_context.map(NonZeroUsize::get);
        chosen
    }
}
