//! The registry of formats in which models write tool calls.
//!
//! A format is one file: its names, the marks by which a chat template shows it, how its calls are
//! read, and the form that makes a model write nothing else. A new format is a new file, one line in
//! [`TOOL_FORMATS`], and a file of transcripts in `tests/golden`; both lines enrol it in the tests.

mod deepseek_v3;
mod deepseek_v31;
mod glm45;
mod granite;
mod granite_20b_fc;
mod hermes;
mod kimi_k2;
mod llama3_json;
mod mistral;
mod openai;
mod phi4;
mod pythonic;
mod qwen3_coder;

pub(crate) use openai::parser as harmony_parser;
use pelton_base::Shape;

use crate::read::{Calls, Driver, Output, Program};
use crate::{Delta, Demand, End, ShapeError, Standing, Tool};

/// A way to write tool calls.
pub trait ToolFormat: Sync {
    /// Name for users, as in vLLM's `--tool-call-parser`.
    fn name(&self) -> &'static str;

    /// Other names that mean the same, such as SGLang's.
    fn aliases(&self) -> &'static [&'static str];

    /// Whether a model with this chat template writes calls so, by the marks in the template's text.
    /// The first format of the registry that says so is meant.
    fn looks_like(&self, chat_template: &str) -> bool;

    /// Names of special tokens whose text the parser must see. The text of other special tokens is
    /// no part of an answer.
    fn control_tokens(&self) -> &'static [&'static str];

    /// Reads one answer. Without tools, every name of a call will do.
    fn parser(&self, tools: &[Tool], trust: Trust) -> Box<dyn Parser>;

    /// The form of an answer in which every call is valid, in exactly the words that
    /// [`parser`](Self::parser) reads. Without `parallel` an answer has at most one call.
    ///
    /// # Errors
    ///
    /// Names the place in the request, such as `tools[0].function.parameters`, that no call in this
    /// format can keep to.
    fn shape(
        &self,
        tools: &[Tool],
        demand: Demand<'_>,
        parallel: bool,
    ) -> Result<Shape, ShapeError>;
}

impl std::fmt::Debug for dyn ToolFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Assumptions that a parser may make about the text.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Trust {
    /// Nothing: a call is passed on when it is complete, so that one that turns out to be malformed
    /// is text.
    #[default]
    Checked,
    /// The form of calls is enforced by a grammar, so arguments are passed on as they come. A call
    /// that is malformed after all ends where the mistake is, and the rest is text.
    Enforced,
    /// As [`Enforced`](Self::Enforced), and after the thought there is nothing but calls: the beginning of
    /// one at the end of the text is no text.
    CallsOnly,
}

/// Reads one answer as it grows.
pub trait Parser: Send {
    /// Reads the next text, and returns what is certain now. All pieces together are the same
    /// however the text is split.
    fn push(&mut self, text: &str) -> Vec<Delta>;

    /// Ends the answer.
    fn finish(&mut self) -> End;

    /// The part of the answer that the text read last belongs to.
    fn standing(&self) -> Standing;
}

/// Every format, those with marks that others share after the others.
pub static TOOL_FORMATS: &[&dyn ToolFormat] = &[
    &openai::OpenAi,
    &kimi_k2::KimiK2,
    &deepseek_v3::DeepSeekV3,
    &deepseek_v31::DeepSeekV31,
    &glm45::Glm45,
    &qwen3_coder::Qwen3Coder,
    &mistral::MistralArgs,
    &mistral::Mistral,
    &phi4::Phi4,
    &phi4::Phi4Tags,
    &granite_20b_fc::Granite20bFc,
    &granite::Granite,
    &hermes::Hermes,
    &pythonic::Pythonic,
    &llama3_json::Llama3Json,
];

/// The format of this name, in any case, with `-` or `_`.
pub fn tool_format(name: &str) -> Option<&'static dyn ToolFormat> {
    let is_meant = |known: &str| same_name(known, name);
    let mut formats = TOOL_FORMATS.iter().copied();
    formats.find(|format| is_meant(format.name()) || format.aliases().iter().any(|a| is_meant(a)))
}

/// The format in which a model with this chat template writes calls, where the template shows it.
pub fn tool_format_of_template(chat_template: &str) -> Option<&'static dyn ToolFormat> {
    TOOL_FORMATS.iter().copied().find(|format| format.looks_like(chat_template))
}

pub(crate) fn same_name(known: &str, name: &str) -> bool {
    known.len() == name.len()
        && known.bytes().zip(name.bytes()).all(|(a, b)| {
            let plain = |byte: u8| if byte == b'-' { b'_' } else { byte.to_ascii_lowercase() };
            plain(a) == plain(b)
        })
}

/// The parser of a format that is a program.
fn calls(program: &'static Program, tools: &[Tool], trust: Trust) -> Box<dyn Parser> {
    Box::new(Driver::new(Calls::new(program, tools), Output::new(tools, trust)))
}
