//! Items of an output, as clients read them.

use pelton_llm::EventToken;
use serde::Serialize;

use crate::routes::chat::{TokenLogprob, logprobs};
use crate::routes::conversation::{Part, Turns, arguments};
use crate::wire::json::RawValue;
use crate::wire::{Shown, fresh_id};

/// Beginning of the text under which a thought travels as `encrypted_content`. It is not encrypted:
/// it is the thought, for clients that send nothing else of it back.
pub(crate) const OWN_THOUGHT: &str = "pelton:";

/// One item of an output.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Item {
    Message {
        id: String,
        status: Status,
        role: &'static str,
        content: Vec<Content>,
    },
    Reasoning {
        id: String,
        status: Status,
        summary: [(); 0],
        content: Vec<Content>,
        #[serde(skip_serializing_if = "Option::is_none")]
        encrypted_content: Option<String>,
    },
    FunctionCall {
        id: String,
        call_id: String,
        name: String,
        arguments: String,
        status: Status,
    },
}

/// How far an item has come.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    InProgress,
    Completed,
    Incomplete,
}

/// A part of the content of an item.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Content {
    OutputText { text: String, annotations: [(); 0], logprobs: Vec<TokenLogprob> },
    ReasoningText { text: String },
}

impl Item {
    /// The item of a part of the answer, without its text.
    pub(crate) fn open(part: Part) -> Self {
        let status = Status::InProgress;
        match part {
            Part::Text => {
                let (id, content) = (fresh_id("msg_"), Vec::new());
                Self::Message { id, status, role: "assistant", content }
            }
            Part::Thought => {
                let (id, content, encrypted_content) = (fresh_id("rs_"), Vec::new(), None);
                Self::Reasoning { id, status, summary: [], content, encrypted_content }
            }
            Part::Call { id: call_id, name } => {
                let (id, arguments) = (fresh_id("fc_"), String::new());
                Self::FunctionCall { id, call_id, name, arguments, status }
            }
        }
    }

    pub(crate) fn id(&self) -> &str {
        match self {
            Self::Message { id, .. }
            | Self::Reasoning { id, .. }
            | Self::FunctionCall { id, .. } => id,
        }
    }

    /// Whether something may be added to it.
    pub(crate) fn is_open(&self) -> bool {
        match self {
            Self::Message { status, .. }
            | Self::Reasoning { status, .. }
            | Self::FunctionCall { status, .. } => *status == Status::InProgress,
        }
    }

    /// The content of an item that has some, without its text.
    pub(crate) fn empty_content(&self) -> Option<Content> {
        let text = String::new();
        match self {
            Self::Message { .. } => {
                Some(Content::OutputText { text, annotations: [], logprobs: Vec::new() })
            }
            Self::Reasoning { .. } => Some(Content::ReasoningText { text }),
            Self::FunctionCall { .. } => None,
        }
    }

    /// Adds text, and the log probabilities of its tokens; returns these.
    pub(crate) fn add(&mut self, more: &str, tokens: Vec<EventToken>) -> Vec<TokenLogprob> {
        let content = match self {
            Self::FunctionCall { arguments, .. } => {
                arguments.push_str(more);
                return Vec::new();
            }
            Self::Message { content, .. } | Self::Reasoning { content, .. } => content,
        };
        match content.last_mut() {
            Some(Content::OutputText { text, logprobs: all, .. }) => {
                text.push_str(more);
                let new = logprobs(tokens, Shown::default());
                all.extend(new.iter().cloned());
                new
            }
            Some(Content::ReasoningText { text }) => {
                text.push_str(more);
                Vec::new()
            }
            None => Vec::new(),
        }
    }

    /// Adds a part without text to the content.
    pub(crate) fn push(&mut self, part: Content) {
        if let Self::Message { content, .. } | Self::Reasoning { content, .. } = self {
            content.push(part);
        }
    }

    /// Marks the item as one to which nothing will be added.
    pub(crate) fn close(&mut self, end: Status, shows_own_thought: bool) {
        if let Self::Reasoning { content, encrypted_content, .. } = self
            && let Some(Content::ReasoningText { text }) = content.last()
        {
            *encrypted_content = shows_own_thought.then(|| format!("{OWN_THOUGHT}{text}"));
        }
        match self {
            Self::Message { status, .. }
            | Self::Reasoning { status, .. }
            | Self::FunctionCall { status, .. } => *status = end,
        }
    }

    /// Adds the item to a conversation that goes on from it.
    pub(crate) fn tell(&self, turns: &mut Turns) {
        match self {
            Self::Message { content, .. } | Self::Reasoning { content, .. } => {
                for part in content {
                    match part {
                        Content::OutputText { text, .. } => turns.text("assistant", text.clone()),
                        Content::ReasoningText { text } => turns.thought(text),
                    }
                }
            }
            Self::FunctionCall { call_id, name, arguments: text, .. } => {
                // The arguments of a call that was cut are no JSON, and the call has none.
                let raw = RawValue::from_string(text.clone()).ok();
                let read = arguments("arguments", raw.as_deref());
                let read = read.unwrap_or_else(|_| serde_json::Map::new().into());
                turns.call(call_id.clone(), name.clone(), read);
            }
        }
    }
}
