//! Flags of `pelton bench grammar`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;

pub(super) const GRAMMAR_HELP_END: &str = "\
Examples:
  pelton bench grammar
  pelton bench grammar -m model.gguf --walks 10
  pelton bench grammar --vocab 128k --schemas folder/ --json > figures.json

Each schema is compiled without a cache; then random walks take tokens of its masks until the answer
ends. Only the tokenizer of the model is read, not its weights. A file of --schemas holds a schema,
or an object with `schema` and `tests`. The command exits with code 1 when a walk comes to a place
where nothing is allowed. Ctrl-C ends early and prints the results so far.";

/// Flags of `pelton bench grammar`.
#[derive(Args, Debug)]
pub(crate) struct BenchGrammarArgs {
    /// Model whose vocabulary is used [default: the embedded one]
    #[arg(short, long, value_name = "MODEL", conflicts_with = "vocab")]
    pub(crate) model: Option<String>,
    /// Size of a made vocabulary instead, such as 128k
    #[arg(long, value_name = "TOKENS", value_parser = parse_size)]
    pub(crate) vocab: Option<usize>,
    /// File or folder with JSON schemas [default: a dozen common ones]
    #[arg(long, value_name = "PATH")]
    pub(crate) schemas: Option<PathBuf>,
    /// Random walks through each schema
    #[arg(long, value_name = "N", default_value = "5")]
    walks: NonZeroUsize,
    /// Most tokens of each walk
    #[arg(short = 'n', long, value_name = "N", default_value = "200")]
    max_tokens: NonZeroUsize,
    /// One JSON object on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

impl BenchGrammarArgs {
    /// The value of `--walks`.
    pub(crate) fn walks(&self) -> usize {
        self.walks.get()
    }

    /// The value of `--max-tokens`.
    pub(crate) fn max_tokens(&self) -> usize {
        self.max_tokens.get()
    }
}

fn parse_size(text: &str) -> Result<usize, String> {
    let (digits, factor) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1024),
        None => (text, 1),
    };
    let size = digits.parse::<usize>().ok().and_then(|size| size.checked_mul(factor));
    size.ok_or_else(|| "expected a number of tokens, such as 128k or 32000".to_owned())
}
