//! Conversations: tools and thoughts on their way into the prompt and out of the answer.
//!
//! ```text
//! messages, tools ─ template (or preamble) ─▶ prompt ─▶ does it end inside of a thought?
//! tools, form     ─ Dialect ─▶ the form of the answer: thought, then calls or the form asked for
//! answer          ─ pelton_parse::Reader ─▶ thought, text, calls
//! ```

mod budget;
mod dialect;
mod preamble;
mod render;

use std::collections::HashSet;

use pelton_base::{ParamError, limits};
use pelton_parse::{Tool, ToolChoice};
use serde_json::{Map, Value};

pub(crate) use budget::Thought;
pub use dialect::{Dialect, Thoughts};
pub(crate) use render::RENDERED;

/// The parts of a conversation beside its messages.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatOptions {
    /// Functions that the model may call.
    pub tools: Vec<Tool>,
    /// Whether it may, must or must not call them.
    pub tool_choice: ToolChoice,
    /// Whether an answer may have several calls.
    pub parallel_tool_calls: bool,
    /// Variables of the chat template, such as `enable_thinking`; a variable that the template does
    /// not mention is refused.
    pub template_args: Map<String, Value>,
    /// How much the model thinks: `none`, `minimal`, `low`, `medium`, `high` or `xhigh`. The template
    /// must know it, or know at least how to turn thoughts off.
    pub reasoning_effort: Option<String>,
    /// Most tokens of the thought, which then ends as if the model had ended it.
    pub thinking_budget: Option<usize>,
    /// Whether thoughts stay in the text as the model wrote them.
    pub raw_thoughts: bool,
    /// Whether the answer continues the last message instead of beginning a new one.
    pub continue_final: bool,
    /// Whether the prompt ends with the opening of the answer; never where the last message is
    /// continued.
    pub opens_answer: bool,
    /// A template in place of the model's own, for this conversation.
    pub template: Option<String>,
    /// Documents for the template, which must know them.
    pub documents: Option<Value>,
}

impl Default for ChatOptions {
    fn default() -> Self {
        Self {
            tools: Vec::new(),
            tool_choice: ToolChoice::Auto,
            parallel_tool_calls: true,
            template_args: Map::new(),
            reasoning_effort: None,
            thinking_budget: None,
            raw_thoughts: false,
            continue_final: false,
            opens_answer: true,
            template: None,
            documents: None,
        }
    }
}

impl ChatOptions {
    /// Checks the tools and the choice among them.
    ///
    /// # Errors
    ///
    /// Names the parameter that is wrong.
    pub(crate) fn validate(&self) -> Result<(), ParamError> {
        let fail = |param, expected, got: &dyn std::fmt::Display| {
            Err(ParamError { param, expected, got: got.to_string() })
        };
        if self.tools.len() > limits::TOOLS {
            return fail("tools", "at most 128 tools", &self.tools.len());
        }
        let mut names = HashSet::new();
        for tool in &self.tools {
            if !(1..=limits::TOOL_NAME_BYTES).contains(&tool.name.len()) {
                return fail("tools", "tools with names of 1 to 64 bytes", &tool.name.len());
            }
            if !names.insert(tool.name.as_str()) {
                return fail("tools", "tools of different names", &tool.name);
            }
        }
        match &self.tool_choice {
            ToolChoice::Named(name) if !names.contains(name.as_str()) => {
                fail("tool_choice", "the name of one of the tools", name)
            }
            ToolChoice::Required if names.is_empty() => {
                fail("tool_choice", "none or auto where there are no tools", &"required")
            }
            _ => Ok(()),
        }
    }

    /// Whether the answer may have calls.
    pub(crate) fn may_call(&self) -> bool {
        !self.tools.is_empty() && self.tool_choice != ToolChoice::None
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tools_and_choices_are_checked_by_name() {
        let tool = |name: &str| Tool::new(name, json!({}));
        let named = |name: &str| ToolChoice::Named(name.to_owned());
        let plain = ChatOptions::default();
        for (param, options) in [
            ("tools", ChatOptions { tools: vec![tool("a"), tool("a")], ..plain.clone() }),
            ("tools", ChatOptions { tools: vec![tool("")], ..plain.clone() }),
            ("tools", ChatOptions { tools: vec![tool("a"); 129], ..plain.clone() }),
            ("tool_choice", ChatOptions { tool_choice: ToolChoice::Required, ..plain.clone() }),
            (
                "tool_choice",
                ChatOptions { tools: vec![tool("a")], tool_choice: named("b"), ..plain.clone() },
            ),
        ] {
            assert_eq!(options.validate().expect_err(param).param, param);
        }
        let some = ChatOptions { tools: vec![tool("a")], tool_choice: named("a"), ..plain.clone() };
        assert!(some.validate().is_ok() && some.may_call());
        assert!(plain.validate().is_ok() && !plain.may_call());
    }
}
