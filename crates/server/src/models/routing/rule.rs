//! The rules as an operator writes them, and the requests that they speak of.

use std::fmt;

use pelton_text::Message;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Sends requests for the model `auto` to a model.
#[derive(Clone, Debug, Eq, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct AutoRule {
    /// The model that answers, by name or alias.
    pub to: String,
    /// The requests that it takes; all, where nothing is stated.
    #[serde(default, skip_serializing_if = "Condition::is_empty")]
    pub when: Condition,
}

/// Moves requests for a model to another one while the first has too much to do.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct DegradeRule {
    /// The model that the requests ask for, by name or alias.
    pub from: String,
    /// The model that answers instead, by name or alias. It is never loaded for this.
    pub to: String,
    /// Begins when more requests for `from` than this have no token yet, and ends when half as many
    /// have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_above: Option<usize>,
    /// Begins when the headroom of `from` (`pelton_slo_headroom_ratio`: 1 without load, below 0 where
    /// a target is missed) is below this, and ends when it is a tenth above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headroom_below: Option<f64>,
    /// The requests that are moved; all, where nothing is stated.
    #[serde(default, skip_serializing_if = "Condition::is_empty")]
    pub when: Condition,
}

/// A class of requests: all that is stated must hold.
#[derive(Clone, Debug, Default, Eq, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Condition {
    /// Least characters of the prompt, or of all messages together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_characters: Option<usize>,
    /// Most of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_characters: Option<usize>,
    /// Least messages of the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_turns: Option<usize>,
    /// Most of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_turns: Option<usize>,
    /// Whether the request brings tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<bool>,
    /// Names of tenants; any of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tenants: Vec<String>,
}

/// The facts of a request that rules ask for.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Traits {
    /// Of the prompt, or of all messages together.
    pub(crate) characters: usize,
    /// Messages of the user; 1 for a prompt.
    pub(crate) turns: usize,
    pub(crate) has_tools: bool,
    /// Whether it is a conversation, which needs a chat template.
    pub(crate) is_chat: bool,
    /// Whether it holds numbers of tokens, which mean something else to another tokenizer.
    pub(crate) has_token_ids: bool,
    /// Whether it asks for something that not every model can do, such as scores of the prompt, a kind of
    /// drafts, or variables of a chat template.
    pub(crate) is_particular: bool,
}

/// The load of a model at this moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Load {
    /// Requests without a token so far.
    pub(crate) waiting: usize,
    /// Of its latency targets, else of its time; `None` before it is known.
    pub(crate) headroom: Option<f64>,
}

impl Traits {
    /// The traits of a conversation without tools.
    pub(crate) fn of_messages(messages: &[Message]) -> Self {
        Self {
            characters: messages.iter().map(|message| characters(&message.content)).sum(),
            turns: messages.iter().filter(|message| message.role == "user").count(),
            is_chat: true,
            ..Self::default()
        }
    }
}

/// The characters of a content: a text, or a list of parts of which some have one.
fn characters(content: &Value) -> usize {
    match content {
        Value::String(text) => text.chars().count(),
        Value::Array(parts) => parts.iter().map(characters).sum(),
        Value::Object(part) => part.get("text").map_or(0, characters),
        _ => 0,
    }
}

impl Condition {
    /// Whether it holds for every request.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn holds(&self, request: &Traits, tenant: &str) -> bool {
        let within = |n: usize, least: Option<usize>, most: Option<usize>| {
            least.is_none_or(|least| n >= least) && most.is_none_or(|most| n <= most)
        };
        within(request.characters, self.min_characters, self.max_characters)
            && within(request.turns, self.min_turns, self.max_turns)
            && self.tools.is_none_or(|tools| tools == request.has_tools)
            && (self.tenants.is_empty() || self.tenants.iter().any(|name| name == tenant))
    }

    /// The field that no request can fulfil, if there is one.
    pub(super) fn impossible(&self) -> Option<&'static str> {
        let is_empty = |least: Option<usize>, most: Option<usize>| {
            least.zip(most).is_some_and(|(least, most)| least > most)
        };
        if is_empty(self.min_characters, self.max_characters) {
            return Some("characters");
        }
        is_empty(self.min_turns, self.max_turns).then_some("turns")
    }
}

impl DegradeRule {
    /// Whether requests are moved now, if they were before or not.
    pub(super) fn is_on(&self, before: bool, load: Load) -> bool {
        let waits = self.waiting_above.is_some_and(|most| match before {
            true => load.waiting > most / 2,
            false => load.waiting > most,
        });
        let margin = if before { 0.1 } else { 0.0 };
        let is_late = self.headroom_below.zip(load.headroom);
        waits || is_late.is_some_and(|(least, headroom)| headroom < least + margin)
    }
}

/// As the log shows it.
impl fmt::Display for Traits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tools = if self.has_tools { "tools" } else { "no tools" };
        write!(f, "{} characters, {} turns, {tools}", self.characters, self.turns)
    }
}

/// As the log shows it.
impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} waiting requests", self.waiting)?;
        match self.headroom {
            Some(headroom) => write!(f, ", headroom {headroom:.2}"),
            None => f.write_str(" and no headroom known yet"),
        }
    }
}
