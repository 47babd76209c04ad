//! From events of the library to JSON for clients.

use std::borrow::Cow;

use pelton_base::{FinishReason, Usage};
use pelton_llm::{Event, Finish, LlmError};
use serde::Serialize;
use serde_json::value::RawValue;

use super::envelope::Failure;
use crate::error::ApiError;
use crate::routes::conversation::{Part, Parts, Step, renamed};
use crate::wire::{Chunks, Head, StreamState, finish_reason};

/// Beginning of the ids of calls.
const CALL_PREFIX: &str = "toolu_";
/// Signature of every thought: thoughts are not signed, and clients expect a text.
const SIGNATURE: &str = "unsigned";

/// An error with the names of this dialect.
pub(crate) fn error(failed: LlmError) -> ApiError {
    const RENAMED: &[(&str, &str)] = &[
        ("prompt", "messages"),
        ("stop", "stop_sequences"),
        ("thinking_budget", "thinking.budget_tokens"),
    ];
    renamed(failed.into(), RENAMED, ".input_schema")
}

/// Tokens as Anthropic's clients count them: those that were found in the cache are not among those
/// of the input. All others are in the cache afterwards, which costs nothing here.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct MessageUsage {
    input_tokens: usize,
    cache_creation_input_tokens: usize,
    cache_read_input_tokens: usize,
    output_tokens: usize,
}

impl From<Usage> for MessageUsage {
    fn from(usage: Usage) -> Self {
        Self {
            input_tokens: usage.prompt_tokens.saturating_sub(usage.cached_tokens),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: usage.cached_tokens,
            output_tokens: usage.completion_tokens,
        }
    }
}

/// One block of an answer.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block {
    Thinking { thinking: String, signature: &'static str },
    Text { text: String },
    ToolUse { id: String, name: String, input: Box<RawValue> },
}

impl Block {
    /// A block without text.
    fn open(part: Part, signature: &'static str) -> Self {
        match part {
            Part::Thought => Self::Thinking { thinking: String::new(), signature },
            Part::Text => Self::Text { text: String::new() },
            Part::Call { id, name } => Self::ToolUse { id, name, input: no_input() },
        }
    }
}

fn no_input() -> Box<RawValue> {
    RawValue::from_string("{}".to_owned()).expect("invariant: `{}` is JSON")
}

/// The answer in one piece, and the frame of a streamed one.
#[derive(Debug, Serialize)]
pub(crate) struct MessageAnswer<'a> {
    id: Cow<'a, str>,
    #[serde(rename = "type")]
    kind: &'static str,
    role: &'static str,
    model: Cow<'a, str>,
    content: Vec<Block>,
    #[serde(flatten)]
    end: End,
    usage: MessageUsage,
}

impl<'a> MessageAnswer<'a> {
    fn new(head: &'a Head, content: Vec<Block>, end: End, usage: Usage) -> Self {
        Self {
            id: Cow::Borrowed(&head.id),
            kind: "message",
            role: "assistant",
            model: Cow::Borrowed(&head.model),
            content,
            end,
            usage: usage.into(),
        }
    }
}

/// Why an answer ended; `null` while it grows.
#[derive(Clone, Debug, Default, Serialize)]
struct End {
    stop_reason: Option<&'static str>,
    stop_sequence: Option<String>,
    /// Whether something that began as a call was none, and is part of the text.
    #[serde(skip_serializing_if = "is_false")]
    malformed_tool_call: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
fn is_false(is_set: &bool) -> bool {
    !*is_set
}

impl End {
    /// The end of an answer that was to have at most `max_tokens`.
    fn new(finish: Finish, max_tokens: usize) -> Result<Self, ApiError> {
        finish_reason(&finish)?;
        let stop_reason = match finish.reason {
            FinishReason::Length if finish.usage.completion_tokens < max_tokens => {
                "model_context_window_exceeded"
            }
            FinishReason::Length => "max_tokens",
            _ if finish.n_calls > 0 => "tool_use",
            _ if finish.stop.is_some() => "stop_sequence",
            _ => "end_turn",
        };
        let stop_sequence = finish.stop.filter(|_| stop_reason == "stop_sequence");
        let malformed_tool_call = finish.malformed_call;
        Ok(Self { stop_reason: Some(stop_reason), stop_sequence, malformed_tool_call })
    }
}

/// Gathers the events of an answer in one piece.
pub(crate) struct Gatherer {
    parts: Parts,
    content: Vec<Block>,
    /// The arguments of the open call.
    json: String,
    end: End,
    max_tokens: usize,
}

impl Gatherer {
    pub(crate) fn new(max_tokens: usize) -> Self {
        let parts = Parts::new(CALL_PREFIX, false);
        let (content, json, end) = (Vec::new(), String::new(), End::default());
        Self { parts, content, json, end, max_tokens }
    }

    /// Adds one event; an answer that failed fails the whole.
    pub(crate) fn add(&mut self, event: Event) -> Result<(), ApiError> {
        let finish = event.finish.clone();
        let steps = self.parts.event(event);
        steps.into_iter().for_each(|step| self.step(step));
        if let Some(finish) = finish {
            self.end = End::new(finish, self.max_tokens)?;
        }
        Ok(())
    }

    fn step(&mut self, step: Step) {
        match (step, self.content.last_mut()) {
            (Step::Open(part), _) => self.content.push(Block::open(part, SIGNATURE)),
            (Step::Add { text, .. }, Some(Block::Thinking { thinking, .. })) => {
                thinking.push_str(&text);
            }
            (Step::Add { text: more, .. }, Some(Block::Text { text })) => text.push_str(&more),
            (Step::Add { text, .. }, Some(Block::ToolUse { .. })) => self.json.push_str(&text),
            (Step::Close, Some(Block::ToolUse { input, .. })) => {
                // The arguments of a call that was cut are no JSON.
                let json = RawValue::from_string(std::mem::take(&mut self.json));
                *input = json.unwrap_or_else(|_| no_input());
            }
            (Step::Add { .. } | Step::Close, _) => {}
        }
    }

    pub(crate) fn finish(mut self, head: &Head, usage: Usage) -> MessageAnswer<'_> {
        let steps = self.parts.end(false);
        steps.into_iter().for_each(|step| self.step(step));
        MessageAnswer::new(head, self.content, self.end, usage)
    }
}

/// One event of a stream.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Chunk<'a> {
    MessageStart { message: MessageAnswer<'a> },
    Ping,
    ContentBlockStart { index: usize, content_block: Block },
    ContentBlockDelta { index: usize, delta: Delta },
    ContentBlockStop { index: usize },
    MessageDelta { delta: End, usage: MessageUsage },
    MessageStop,
}

impl Chunk<'_> {
    fn name(&self) -> &'static str {
        match self {
            Self::MessageStart { .. } => "message_start",
            Self::Ping => "ping",
            Self::ContentBlockStart { .. } => "content_block_start",
            Self::ContentBlockDelta { .. } => "content_block_delta",
            Self::ContentBlockStop { .. } => "content_block_stop",
            Self::MessageDelta { .. } => "message_delta",
            Self::MessageStop => "message_stop",
        }
    }
}

#[derive(Serialize)]
#[serde(tag = "type")]
enum Delta {
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: String },
    #[serde(rename = "signature_delta")]
    Signature { signature: &'static str },
    #[serde(rename = "text_delta")]
    Text { text: String },
    #[serde(rename = "input_json_delta")]
    Input { partial_json: String },
}

#[derive(Clone, Copy)]
enum Kind {
    Thought,
    Text,
    Call,
}

/// Makes the events of a streamed answer.
pub(crate) struct ChunkMaker {
    head: Head,
    parts: Parts,
    /// Tokens of the prompt, as far as they are known at the beginning.
    usage: Usage,
    /// Number of blocks that were opened.
    n_blocks: usize,
    /// The kind of the block that was opened last.
    kind: Kind,
    end: Option<End>,
    max_tokens: usize,
    request_id: String,
}

impl ChunkMaker {
    pub(crate) fn new(head: Head, usage: Usage, max_tokens: usize, request_id: String) -> Self {
        let (parts, kind) = (Parts::new(CALL_PREFIX, false), Kind::Text);
        Self { head, parts, usage, n_blocks: 0, kind, end: None, max_tokens, request_id }
    }

    fn step(&mut self, step: Step, out: &mut Chunks) {
        if let Step::Open(part) = step {
            self.n_blocks += 1;
            self.kind = match part {
                Part::Thought => Kind::Thought,
                Part::Text => Kind::Text,
                Part::Call { .. } => Kind::Call,
            };
            let (index, content_block) = (self.n_blocks - 1, Block::open(part, ""));
            return push(out, &Chunk::ContentBlockStart { index, content_block });
        }
        let index = self.n_blocks.saturating_sub(1);
        let delta = match (step, self.kind) {
            (Step::Add { text, .. }, _) if text.is_empty() => return,
            (Step::Add { text, .. }, Kind::Thought) => Delta::Thinking { thinking: text },
            (Step::Add { text, .. }, Kind::Text) => Delta::Text { text },
            (Step::Add { text, .. }, Kind::Call) => Delta::Input { partial_json: text },
            (_, kind) => {
                if let Kind::Thought = kind {
                    let delta = Delta::Signature { signature: SIGNATURE };
                    push(out, &Chunk::ContentBlockDelta { index, delta });
                }
                return push(out, &Chunk::ContentBlockStop { index });
            }
        };
        push(out, &Chunk::ContentBlockDelta { index, delta });
    }
}

fn push(out: &mut Chunks, chunk: &Chunk<'_>) {
    out.push_named(chunk.name(), chunk);
}

impl StreamState for ChunkMaker {
    const DONE: Option<&str> = None;

    fn start(&mut self, out: &mut Chunks) {
        let message = MessageAnswer::new(&self.head, Vec::new(), End::default(), self.usage);
        push(out, &Chunk::MessageStart { message });
        push(out, &Chunk::Ping);
    }

    fn event(&mut self, event: Event, out: &mut Chunks) {
        let finish = event.finish.clone();
        for step in self.parts.event(event) {
            self.step(step, out);
        }
        match finish.map(|finish| End::new(finish, self.max_tokens)) {
            None => {}
            Some(Ok(end)) => self.end = Some(end),
            Some(Err(error)) => out.fail(error),
        }
    }

    fn end(&mut self, usage: Usage, out: &mut Chunks) {
        // After a failure there is no end.
        let Some(delta) = self.end.take() else { return };
        for step in self.parts.end(false) {
            self.step(step, out);
        }
        push(out, &Chunk::MessageDelta { delta, usage: usage.into() });
        push(out, &Chunk::MessageStop);
    }

    fn failed(&mut self, error: &ApiError, out: &mut Chunks) {
        out.push_named("error", &Failure::new(error, Some(&self.request_id)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_tells_of_a_call_that_was_none() {
        let finish = |malformed_call| Finish {
            reason: FinishReason::Stop,
            stop: None,
            stop_token: None,
            fault: None,
            beam: None,
            n_calls: 0,
            malformed_call,
            usage: Usage::default(),
        };
        let end = |malformed| {
            let end = End::new(finish(malformed), 9).expect("no failure");
            serde_json::to_value(end).expect("plain data")
        };
        assert_eq!(end(true)["malformed_tool_call"], true);
        assert_eq!(end(false).get("malformed_tool_call"), None);
    }
}
