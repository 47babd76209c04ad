//! Flags of `pelton parse-tools`.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser};
use pelton_parse::{REASONING_FORMATS, TOOL_FORMATS};

pub(super) const HELP_END: &str = "\
Examples:
  echo '\"<tool_call>{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": {}}</tool_call>\"' |
       pelton parse-tools --tool-parser hermes
  pelton parse-tools --tool-parser qwen3_coder --tools tools.json answers.jsonl
  pelton parse-tools --tool-parser list                  the names, and other names for the same

Each line is a JSON string: the text of an answer as the model wrote it, with its marks. For each line
one object is printed: `content`, `tool_calls` with `name` and `arguments`, and `reasoning` where
there is a thought. The answer is read whole and in pieces, which must give the same. Text that looks
like a call and is none stays in the content; a note on stderr says so.";

/// The word for all names.
const LIST: &str = "list";

/// Flags of `pelton parse-tools`.
#[derive(Args, Debug)]
pub(crate) struct ParseToolsArgs {
    /// File with a JSON string per line [default: standard input]
    pub(crate) file: Option<PathBuf>,
    /// Format of the calls; `list` prints the names
    #[arg(long, value_name = "NAME", value_parser = tool_parsers(), ignore_case = true)]
    pub(crate) tool_parser: String,
    /// Format of the thought [default: thoughts stay in the content]
    #[arg(long, value_name = "NAME", value_parser = reasoning_parsers(), ignore_case = true)]
    pub(crate) reasoning_parser: Option<String>,
    /// JSON file with an array of tools, as in a request; without it every name of a call will do,
    /// and parameters have the kind that they look like
    #[arg(long, value_name = "FILE")]
    pub(crate) tools: Option<PathBuf>,
    /// Print the array of pieces that a client of a stream gets instead
    #[arg(long)]
    pub(crate) stream: bool,
}

fn tool_parsers() -> PossibleValuesParser {
    let value = |name: &'static str, aliases: &'static [&'static str]| {
        PossibleValue::new(name).aliases(aliases.iter().copied())
    };
    let values = TOOL_FORMATS.iter().map(|format| value(format.name(), format.aliases()));
    PossibleValuesParser::new(values.chain([PossibleValue::new(LIST)]))
}

fn reasoning_parsers() -> PossibleValuesParser {
    PossibleValuesParser::new(
        REASONING_FORMATS.iter().map(|format| {
            PossibleValue::new(format.name()).aliases(format.aliases().iter().copied())
        }),
    )
}
