//! The formats in which a model writes thoughts and calls.
//!
//! A chat template shows both: it prints earlier calls and thoughts in the model's own format. Where
//! a template has no place for tools, they are described in the system message (see
//! [`preamble`](super::preamble)) and called in the format of Hermes.

use std::sync::Arc;

use pelton_base::{ParamError, Shape, TokenId};
use pelton_parse::{
    Demand, REASONING_FORMATS, ReaderOptions, ReasoningFormat, TOOL_FORMATS, ToolFormat, Trust,
    reasoning_format, reasoning_format_of_template, tool_format, tool_format_of_template,
};
use pelton_text::{ChatTemplate, EncodeOptions, Message, RenderOptions, Tokenizer};
use serde_json::Value;

use super::{ChatOptions, Thought, preamble};
use crate::error::LlmError;
use crate::options::LlmOptions;

/// The format of calls where the template shows none.
const FALLBACK: &str = "hermes";
/// Templates of Mistral refuse ids of calls that are not 9 letters and digits; this is their check.
const SHORT_IDS: &str = "|length != 9";
/// The format of calls whose form has room for thoughts.
const CHANNELS: &str = "openai";
/// Variables of templates that turn thoughts on and off.
const SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];

/// How a model thinks before it answers, and how a request can change that.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Thoughts {
    /// Whether thoughts are told from the answer, and so have a length that can be bounded.
    pub is_read: bool,
    /// Variables of the chat template that turn thoughts on and off.
    pub switches: Vec<&'static str>,
    /// Whether the chat template knows how much to think (`reasoning_effort`).
    pub has_effort: bool,
}

/// How one model writes thoughts and calls.
#[derive(Clone)]
pub struct Dialect {
    tools: &'static dyn ToolFormat,
    reasoning: Option<&'static ReasoningFormat>,
    /// Whether the template prints tools.
    reads_tools: bool,
    /// The text of the template and its variants.
    template: String,
}

impl std::fmt::Debug for Dialect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dialect")
            .field("tools", &self.tools.name())
            .field("reasoning", &self.reasoning.map(ReasoningFormat::name))
            .field("reads_tools", &self.reads_tools)
            .finish_non_exhaustive()
    }
}

impl Dialect {
    /// The formats that the options name, else those that the template shows.
    ///
    /// # Errors
    ///
    /// Names the option with the name of an unknown format.
    pub fn choose(template: Option<&ChatTemplate>, options: &LlmOptions) -> Result<Self, LlmError> {
        let sources = template.map(ChatTemplate::sources).unwrap_or_default();
        let text: Vec<&str> = sources.iter().map(|source| source.text.as_str()).collect();
        let text = text.join("\n");
        let unknown = |option, name: &str, known: Vec<&str>| {
            let known = known.join(", ");
            LlmError::Option { option, why: format!("unknown format `{name}`: expected {known}") }
        };
        let reads_tools = text.contains("tools");
        let fallback = || tool_format(FALLBACK).expect("invariant: it is in the registry");
        let tools = match options.tool_parser.as_deref() {
            Some(name) => tool_format(name).ok_or_else(|| {
                let names = TOOL_FORMATS.iter().map(|format| format.name());
                unknown("tool_parser", name, names.collect())
            })?,
            None if reads_tools => tool_format_of_template(&text).unwrap_or_else(fallback),
            None => fallback(),
        };
        let reasoning = match options.reasoning_parser.as_deref() {
            Some("none") => None,
            Some(name) => Some(reasoning_format(name).ok_or_else(|| {
                let names = REASONING_FORMATS.iter().map(|format| format.name());
                unknown("reasoning_parser", name, names.chain(["none"]).collect())
            })?),
            None => reasoning_format_of_template(&text),
        };
        tracing::debug!(
            tools = tools.name(),
            reads_tools,
            reasoning = reasoning.map_or("none", |format| format.name()),
            "formats of calls and thoughts"
        );
        Ok(Self { tools, reasoning, reads_tools, template: text })
    }

    /// The same formats with another template.
    pub(crate) fn with_template(&self, template: &ChatTemplate) -> Self {
        let sources = template.sources().iter().map(|source| source.text.as_str());
        let template = sources.collect::<Vec<_>>().join("\n");
        Self { reads_tools: template.contains("tools"), template, ..self.clone() }
    }

    /// Messages and arguments with which the template renders a conversation.
    ///
    /// # Errors
    ///
    /// Names a variable or an effort that the template does not know.
    pub(crate) fn prepare<'a>(
        &self,
        messages: &'a [Message],
        chat: &ChatOptions,
    ) -> Result<(std::borrow::Cow<'a, [Message]>, RenderOptions), ParamError> {
        let mut options = RenderOptions {
            add_generation_prompt: chat.opens_answer,
            continue_final_message: chat.continue_final,
            documents: chat.documents.clone(),
            ..RenderOptions::default()
        };
        if chat.documents.is_some() && !self.mentions("documents") {
            let expected = "absent where the chat template of the model does not read them";
            let got = "documents".to_owned();
            return Err(ParamError { param: "documents", expected, got });
        }
        options.extra.clone_from(&chat.template_args);
        if let Some(unknown) = chat.template_args.keys().find(|name| !self.mentions(name)) {
            let expected = "variables that the chat template of this model mentions";
            let got = format!("`{unknown}`");
            return Err(ParamError { param: "chat_template_kwargs", expected, got });
        }
        if let Some(effort) = &chat.reasoning_effort {
            self.think(effort, &mut options)?;
        }
        let has_calls = |message: &Message| message.extra.contains_key("tool_calls");
        let is_tool = |message: &Message| message.role == "tool" || has_calls(message);
        if self.reads_tools {
            if !chat.tools.is_empty() {
                options.tools = Some(preamble::tools_json(&chat.tools));
            }
            if self.template.contains(SHORT_IDS) {
                let messages = messages.iter().cloned().map(preamble::with_short_ids);
                return Ok((messages.collect::<Vec<_>>().into(), options));
            }
            return Ok((messages.into(), options));
        }
        if chat.tools.is_empty() && !messages.iter().any(is_tool) {
            return Ok((messages.into(), options));
        }
        Ok((preamble::as_text(messages, &chat.tools).into(), options))
    }

    /// How the model thinks, as far as its template shows it.
    pub fn thoughts(&self) -> Thoughts {
        Thoughts {
            is_read: self.reasoning.is_some(),
            switches: SWITCHES.into_iter().filter(|name| self.mentions(name)).collect(),
            has_effort: self.mentions("reasoning_effort"),
        }
    }

    pub(crate) fn mentions(&self, variable: &str) -> bool {
        self.template.contains(variable)
    }

    /// Tells the template how much to think.
    fn think(&self, effort: &str, options: &mut RenderOptions) -> Result<(), ParamError> {
        let is_on = effort != "none";
        let switches = SWITCHES.into_iter().filter(|name| self.mentions(name));
        let mut is_known = false;
        for switch in switches {
            options.extra.entry(switch).or_insert(Value::Bool(is_on));
            is_known = true;
        }
        if self.mentions("reasoning_effort") {
            options.extra.entry("reasoning_effort").or_insert(effort.into());
            is_known = true;
        }
        if is_known {
            return Ok(());
        }
        let expected = "absent where the chat template of the model does not know it";
        Err(ParamError { param: "reasoning_effort", expected, got: effort.to_owned() })
    }

    /// The form of the answers to a prompt: the form that was asked for or calls, and the thought
    /// before it. `None` where answers are free.
    ///
    /// # Errors
    ///
    /// Names the place in the request that no answer can keep to.
    pub(crate) fn form(
        &self,
        prompt: &str,
        form: Option<Shape>,
        chat: &ChatOptions,
    ) -> Result<Option<Shape>, LlmError> {
        let demand = chat.tool_choice.demand().filter(|_| chat.may_call());
        let calls = |demand| {
            // A function that is named is called once.
            let parallel = chat.parallel_tool_calls && !matches!(demand, Demand::Named(_));
            let shape = self.tools.shape(&chat.tools, demand, parallel);
            shape.map_err(|error| LlmError::Form { path: error.path, why: error.reason })
        };
        let shape = match (demand, form) {
            (None, None) => return Ok(None),
            (None, Some(form)) => form,
            (Some(demand), None) => calls(demand)?,
            // The model decides whether it answers in the form or calls.
            (Some(Demand::Auto), Some(form)) => Shape::OneOf(vec![form, calls(Demand::Required)?]),
            (Some(_), Some(_)) => {
                let (param, expected) = ("tool_choice", "none or auto where the answer has a form");
                let got = "a required call".to_owned();
                return Err(ParamError { param, expected, got }.into());
            }
        };
        // The channels of gpt-oss hold thoughts and calls in one form.
        let has_thought = demand.is_some() && self.tools.name() == CHANNELS;
        Ok(Some(match self.reasoning.filter(|_| !has_thought) {
            Some(format) => format.before(shape, format.opens_in(prompt)),
            None => shape,
        }))
    }

    /// The bound of the thought.
    ///
    /// # Errors
    ///
    /// When the model does not think.
    pub(crate) fn bound(
        &self,
        prompt: &str,
        chat: &ChatOptions,
        tokenizer: &Arc<Tokenizer>,
    ) -> Result<Option<Thought>, LlmError> {
        let Some(budget) = chat.thinking_budget else { return Ok(None) };
        let Some(format) = self.reasoning else {
            let expected = "absent where the model does not think before it answers";
            let got = budget.to_string();
            return Err(ParamError { param: "thinking_budget", expected, got }.into());
        };
        let encode = EncodeOptions { add_special: false, parse_special: true };
        let close: Vec<TokenId> = tokenizer.encode_with(format.close(), encode)?;
        let (tokenizer, starts_inside) = (Arc::clone(tokenizer), format.opens_in(prompt));
        Ok(Some(Thought { tokenizer, format, starts_inside, close, budget }))
    }

    /// The reader of the answers to a prompt; `None` where they are plain text.
    pub(crate) fn reader(&self, prompt: &str, chat: &ChatOptions) -> Option<ReaderOptions> {
        let reasoning = self.reasoning.filter(|_| !chat.raw_thoughts);
        let tools = chat.may_call().then_some(self.tools);
        if reasoning.is_none() && tools.is_none() {
            return None;
        }
        Some(ReaderOptions {
            starts_inside: reasoning.is_some_and(|format| format.opens_in(prompt)),
            reasoning,
            tools: tools.map(|format| (format, chat.tools.clone())),
            // A form holds for every call, also where the model decides whether it calls.
            trust: match chat.tool_choice.demand() {
                None | Some(Demand::Auto) => Trust::Enforced,
                Some(Demand::Required | Demand::Named(_)) => Trust::CallsOnly,
            },
        })
    }

    /// Names of special tokens whose text the reader must see.
    pub(crate) fn control_tokens(&self, options: &ReaderOptions) -> Vec<&'static str> {
        let tools = options.tools.as_ref().map(|(format, _)| format.control_tokens());
        let reasoning = options.reasoning.map(ReasoningFormat::control_tokens);
        let tools = tools.into_iter().flatten().copied();
        tools.chain(reasoning.into_iter().flatten()).collect()
    }
}
