//! Flags of `pelton embed`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use pelton_llm::Pooling;

use super::{Choice, ComputeArg};

pub(crate) const HELP_END: &str = "\
Examples:
  pelton embed BAAI/bge-small-en-v1.5 \"a cat\" \"a dog\" \"a car\" --similarity
  pelton embed ./my-model --file lines.txt --json > vectors.json
  git log --format=%s | pelton embed model.gguf -
  pelton embed Qwen/Qwen3-Embedding-0.6B \"capital of France\" --prompt query --dimensions 256

One line of numbers per text on stdout. Encoders (BERT, RoBERTa, ModernBERT, ..) and decoders alike:
how rows become a vector is read from the model's files, or said by --pooling.";

/// Flags of `pelton embed`.
#[derive(Args, Debug)]
pub(crate) struct EmbedArgs {
    /// Folder, .gguf file or hub id (owner/name)
    pub(crate) model: String,
    /// Texts; `-` reads standard input, a text per line
    #[arg(required_unless_present = "file")]
    pub(crate) texts: Vec<String>,
    /// Texts of a file, one per line, after those of the command line
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// One JSON object on stdout: vectors, tokens of each text, what is known about the model
    #[arg(long)]
    pub(crate) json: bool,
    /// Print how similar the texts are to one another (cosine) instead of the vectors
    #[arg(long)]
    pub(crate) similarity: bool,
    /// Elements of a vector: the first of those that it has, for models that were trained for it
    #[arg(long, value_name = "N")]
    pub(crate) dimensions: Option<NonZeroUsize>,
    /// Name of the prompt that is put before each text [default: what the model's files say]
    #[arg(long, value_name = "NAME")]
    pub(crate) prompt: Option<String>,
    /// Cut texts that are too long instead of refusing them
    #[arg(long)]
    pub(crate) truncate: bool,
    /// How the model is made one for vectors.
    #[command(flatten)]
    pub(crate) vectors: VectorArgs,
    /// Threads that compute [default: the processors this process may use]
    #[arg(long, env = "PELTON_THREADS", value_name = "N")]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Arithmetic: `auto` uses the fast kernels of the weights' format, `f32` widens everything
    /// [default: auto]
    #[arg(long, env = "PELTON_COMPUTE", value_enum)]
    pub(crate) compute: Option<ComputeArg>,
    /// Longest text, in tokens [default: what the model declares, at most 8192]
    #[arg(long, value_name = "N")]
    pub(crate) max_tokens: Option<NonZeroUsize>,
}

/// What the model's files say about vectors, said otherwise.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct VectorArgs {
    /// How the rows of a text become its vector: cls, max, mean, mean_sqrt_len_tokens, weightedmean
    /// or lasttoken [default: what the model's files say]
    #[arg(long, env = "PELTON_POOLING", value_name = "KIND", help_heading = "Embeddings")]
    pub(crate) pooling: Option<Pooling>,
    /// Whether vectors get the length 1 [default: what the model's files say]
    #[arg(long, env = "PELTON_NORMALIZE", value_name = "BOOL", help_heading = "Embeddings")]
    pub(crate) normalize: Option<bool>,
}

impl Choice for Pooling {
    fn all() -> &'static [Self] {
        &Self::ALL
    }

    fn name(self) -> &'static str {
        self.name()
    }
}
