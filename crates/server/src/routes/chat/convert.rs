//! From events of the library to JSON for clients.

use pelton_base::{TokenId, Usage};
use pelton_llm::{CallPiece, Event, EventToken, Finish, LlmError};

use super::types::{
    AnswerCall, AnswerFunction, AnswerMessage, ChatAnswer, ChatChunk, Choice, ChunkChoice, Delta,
    DeltaCall, DeltaFunction, Logprobs, TokenLogprob, TopLogprob,
};
use crate::error::ApiError;
use crate::wire::{
    Ask, Chunks, FINGERPRINT, Head, Ids, Now, PromptLogprobs, Shown, StopReason, StreamOptions,
    StreamState, finish_reason, finite, fresh_id, obfuscation,
};

/// An error with the parameter name of this endpoint: the prompt is `messages`.
pub(crate) fn error(error: LlmError) -> ApiError {
    let mut error = ApiError::from(error);
    if error.body.param.as_deref() == Some("prompt") {
        error.body.param = Some("messages".to_owned());
    }
    error
}

pub(crate) fn logprobs(tokens: Vec<EventToken>, shown: Shown) -> Vec<TokenLogprob> {
    let entry = |token: EventToken| {
        let logprob = token.logprob?;
        let top = logprob.top.into_iter().map(|top| TopLogprob {
            token: shown.name(top.id, &top.bytes),
            logprob: finite(top.logprob),
            bytes: top.bytes,
        });
        Some(TokenLogprob {
            token: shown.name(token.id, &token.bytes),
            logprob: finite(logprob.logprob),
            bytes: token.bytes,
            top_logprobs: top.collect(),
        })
    };
    // Control tokens have no text, so they have no log probabilities here.
    tokens.into_iter().filter(|token| !token.is_special).filter_map(entry).collect()
}

/// The reason why an answer of a conversation ended; calls that are complete are a reason of their
/// own.
fn reason_of(finish: &Finish) -> Result<&'static str, ApiError> {
    match finish_reason(finish)? {
        "stop" if finish.n_calls > 0 => Ok("tool_calls"),
        reason => Ok(reason),
    }
}

/// Parts of a conversation that its answers show.
#[derive(Debug, Default)]
pub(crate) struct Before {
    pub(crate) n_choices: usize,
    /// The text of the last message, where it is echoed because the answer continues it.
    pub(crate) echo: Option<String>,
    /// The tokens of the prompt, where they are asked for.
    pub(crate) tokens: Option<Ids>,
    /// Number of tokens of the prompt.
    pub(crate) n_prompt: usize,
}

impl Before {
    /// Of this many answers, which show nothing before them.
    pub(crate) fn of(n_choices: usize) -> Self {
        Self { n_choices, ..Self::default() }
    }
}

/// Gathers the events of an answer in one piece.
pub(crate) struct Gatherer {
    choices: Vec<Gathered>,
    ask: Ask,
    before: Before,
    prompt: Option<PromptLogprobs>,
}

#[derive(Default)]
struct Gathered {
    text: String,
    thought: String,
    calls: Vec<AnswerCall>,
    logprobs: Vec<TokenLogprob>,
    finish_reason: &'static str,
    stop_reason: Option<StopReason>,
    token_ids: Option<Vec<TokenId>>,
    malformed_call: bool,
}

impl Gatherer {
    pub(crate) fn new(before: Before, ask: Ask) -> Self {
        let empty = |_| Gathered {
            text: before.echo.clone().unwrap_or_default(),
            token_ids: ask.shown.token_ids.then(Vec::new),
            ..Gathered::default()
        };
        let choices = (0..before.n_choices).map(empty).collect();
        Self { choices, ask, before, prompt: None }
    }

    /// Adds one event; an answer that failed fails the whole.
    pub(crate) fn add(&mut self, event: Event) -> Result<(), ApiError> {
        if self.prompt.is_none() {
            self.prompt = self.ask.shown.scores(event.prompt.as_ref());
        }
        let choice = &mut self.choices[event.choice];
        let ids = event.tokens.iter().map(|token| token.id);
        choice.token_ids.iter_mut().for_each(|all| all.extend(ids.clone()));
        choice.text.push_str(&event.text);
        choice.thought.push_str(&event.thought);
        event.calls.into_iter().for_each(|piece| choice.call(piece));
        if self.ask.logprobs {
            choice.logprobs.extend(logprobs(event.tokens, self.ask.shown));
        }
        if let Some(finish) = event.finish {
            choice.malformed_call = finish.malformed_call;
            choice.stop_reason = StopReason::of(&finish);
            choice.finish_reason = reason_of(&finish)?;
        }
        Ok(())
    }

    pub(crate) fn finish(self, head: Head, now: Now) -> ChatAnswer {
        let ask = self.ask;
        let choices = self.choices.into_iter().enumerate().map(|(index, mut gathered)| Choice {
            index,
            message: gathered.message(ask),
            logprobs: ask
                .logprobs
                .then_some(Logprobs { content: gathered.logprobs, refusal: None }),
            finish_reason: gathered.finish_reason,
            stop_reason: gathered.stop_reason.take(),
            token_ids: gathered.token_ids.take(),
            malformed_tool_call: gathered.malformed_call,
        });
        ChatAnswer {
            id: head.id,
            object: "chat.completion",
            created: head.created,
            model: head.model,
            choices: choices.collect(),
            usage: now.usage.into(),
            system_fingerprint: FINGERPRINT,
            prompt_token_ids: self.before.tokens,
            prompt_logprobs: self.prompt,
            timings: ask.shown.timings.then(|| now.into()),
        }
    }
}

impl Gathered {
    fn call(&mut self, piece: CallPiece) {
        if let Some(name) = piece.name {
            let function = AnswerFunction { name, arguments: String::new() };
            self.calls.push(AnswerCall { id: fresh_id("call_"), kind: "function", function });
        }
        if let Some(call) = self.calls.get_mut(piece.index) {
            call.function.arguments.push_str(&piece.arguments);
        }
    }

    fn message(&mut self, ask: Ask) -> AnswerMessage {
        let calls = std::mem::take(&mut self.calls);
        let text = std::mem::take(&mut self.text);
        let thought = std::mem::take(&mut self.thought);
        let reasoning = (!thought.is_empty() && !ask.hides_thoughts).then_some(thought);
        AnswerMessage {
            role: "assistant",
            content: (calls.is_empty() || !text.trim().is_empty()).then_some(text),
            refusal: None,
            tool_calls: calls,
            reasoning_content: reasoning.clone(),
            reasoning,
        }
    }
}

/// Makes the chunks of a streamed answer.
pub(crate) struct ChunkMaker {
    head: Head,
    options: StreamOptions,
    ask: Ask,
    before: Before,
    now: Now,
}

impl ChunkMaker {
    pub(crate) fn new(head: Head, options: StreamOptions, ask: Ask, before: Before) -> Self {
        let mut now = Now::default();
        now.usage.prompt_tokens = before.n_prompt;
        Self { head, options, ask, before, now }
    }

    fn chunk(&self, choices: Vec<ChunkChoice>, usage: Option<Usage>) -> ChatChunk<'_> {
        let usage = usage.or(self.options.continuous_usage.then_some(self.now.usage));
        let content = choices.iter().filter_map(|choice| choice.delta.content.as_ref());
        let n_bytes = content.map(String::len).sum();
        ChatChunk {
            id: &self.head.id,
            object: "chat.completion.chunk",
            created: self.head.created,
            model: &self.head.model,
            system_fingerprint: FINGERPRINT,
            choices,
            usage: self.options.include_usage.then_some(usage.map(Into::into)),
            prompt_token_ids: None,
            timings: self.ask.shown.timings.then(|| self.now.into()),
            obfuscation: self.options.obfuscates.then(|| obfuscation(n_bytes)),
        }
    }
}

impl StreamState for ChunkMaker {
    fn start(&mut self, out: &mut Chunks) {
        let mut prompt = self.before.tokens.take();
        for index in 0..self.before.n_choices {
            let echo = self.before.echo.clone().unwrap_or_default();
            let (role, content) = (Some("assistant"), Some(echo));
            let delta = Delta { role, content, ..Delta::default() };
            let choice = ChunkChoice::new(index, delta);
            let prompt_token_ids = prompt.take();
            out.push(&ChatChunk { prompt_token_ids, ..self.chunk(vec![choice], None) });
        }
    }

    fn now(&mut self) -> Option<&mut Now> {
        let shows = self.options.continuous_usage || self.ask.shown.timings;
        shows.then_some(&mut self.now)
    }

    fn event(&mut self, event: Event, out: &mut Chunks) {
        let index = event.choice;
        let shown = self.ask.shown;
        let token_ids = shown.ids(&event.tokens).filter(|ids| !ids.is_empty());
        let logprobs = match self.ask.logprobs {
            true => logprobs(event.tokens, shown),
            false => Vec::new(),
        };
        let hides_thoughts = self.ask.hides_thoughts;
        let thought = Some(event.thought).filter(|text| !text.is_empty() && !hides_thoughts);
        let tool_calls: Vec<DeltaCall> = event.calls.into_iter().map(delta_call).collect();
        let has_more = thought.is_some() || !tool_calls.is_empty();
        let has_tokens = !logprobs.is_empty() || token_ids.is_some();
        if !event.text.is_empty() || has_tokens || has_more {
            // A piece of something else has no content, but log probabilities alone have some.
            let content = Some(event.text).filter(|text| !text.is_empty() || !has_more);
            let (reasoning, reasoning_content) = (thought.clone(), thought);
            let delta = Delta { role: None, content, reasoning, reasoning_content, tool_calls };
            let logprobs =
                self.ask.logprobs.then_some(Logprobs { content: logprobs, refusal: None });
            let choice = ChunkChoice { logprobs, token_ids, ..ChunkChoice::new(index, delta) };
            out.push(&self.chunk(vec![choice], None));
        }
        let Some(finish) = event.finish else { return };
        match reason_of(&finish) {
            Ok(reason) => {
                let delta = Delta::default();
                let finish_reason = Some(reason);
                let malformed_tool_call = finish.malformed_call;
                let last = ChunkChoice::new(index, delta);
                let stop_reason = StopReason::of(&finish);
                let choice =
                    ChunkChoice { finish_reason, stop_reason, malformed_tool_call, ..last };
                out.push(&self.chunk(vec![choice], None));
            }
            Err(error) => out.fail(error),
        }
    }

    fn end(&mut self, usage: Usage, out: &mut Chunks) {
        if self.options.include_usage {
            out.push(&self.chunk(Vec::new(), Some(usage)));
        }
    }
}

fn delta_call(piece: CallPiece) -> DeltaCall {
    let is_first = piece.name.is_some();
    DeltaCall {
        index: piece.index,
        id: is_first.then(|| fresh_id("call_")),
        kind: is_first.then_some("function"),
        function: DeltaFunction { name: piece.name, arguments: piece.arguments },
    }
}
