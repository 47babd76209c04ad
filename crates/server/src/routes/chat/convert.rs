//! From events of the library to JSON for clients.

use pelton_base::Usage;
use pelton_llm::{Event, EventToken, LlmError};

use super::types::{
    AnswerMessage, ChatAnswer, ChatChunk, Choice, ChunkChoice, Delta, Logprobs, TokenLogprob,
    TopLogprob,
};
use crate::error::ApiError;
use crate::wire::{
    Chunks, FINGERPRINT, Head, StreamOptions, StreamState, finish_reason, finite, token_text,
};

/// An error with the parameter name of this endpoint: the prompt is `messages`.
pub(crate) fn error(error: LlmError) -> ApiError {
    let mut error = ApiError::from(error);
    if error.body.param.as_deref() == Some("prompt") {
        error.body.param = Some("messages".to_owned());
    }
    error
}

fn logprobs(tokens: Vec<EventToken>) -> Vec<TokenLogprob> {
    let entry = |token: EventToken| {
        let logprob = token.logprob?;
        let top = logprob.top.into_iter().map(|top| TopLogprob {
            token: token_text(&top.bytes),
            logprob: finite(top.logprob),
            bytes: top.bytes,
        });
        Some(TokenLogprob {
            token: token_text(&token.bytes),
            logprob: finite(logprob.logprob),
            bytes: token.bytes,
            top_logprobs: top.collect(),
        })
    };
    // Control tokens have no text, so they have no log probabilities here.
    tokens.into_iter().filter(|token| !token.is_special).filter_map(entry).collect()
}

/// Gathers the events of an answer in one piece.
pub(crate) struct Gatherer {
    choices: Vec<Gathered>,
    with_logprobs: bool,
}

#[derive(Default)]
struct Gathered {
    text: String,
    logprobs: Vec<TokenLogprob>,
    finish_reason: &'static str,
}

impl Gatherer {
    pub(crate) fn new(n_choices: usize, with_logprobs: bool) -> Self {
        Self { choices: (0..n_choices).map(|_| Gathered::default()).collect(), with_logprobs }
    }

    /// Adds one event; an answer that failed fails the whole.
    pub(crate) fn add(&mut self, event: Event) -> Result<(), ApiError> {
        let choice = &mut self.choices[event.choice];
        choice.text.push_str(&event.text);
        if self.with_logprobs {
            choice.logprobs.extend(logprobs(event.tokens));
        }
        if let Some(finish) = event.finish {
            choice.finish_reason = finish_reason(&finish)?;
        }
        Ok(())
    }

    pub(crate) fn finish(self, head: Head, usage: Usage) -> ChatAnswer {
        let with_logprobs = self.with_logprobs;
        let choices = self.choices.into_iter().enumerate().map(|(index, gathered)| Choice {
            index,
            message: AnswerMessage { role: "assistant", content: gathered.text, refusal: None },
            logprobs: with_logprobs
                .then_some(Logprobs { content: gathered.logprobs, refusal: None }),
            finish_reason: gathered.finish_reason,
        });
        ChatAnswer {
            id: head.id,
            object: "chat.completion",
            created: head.created,
            model: head.model,
            choices: choices.collect(),
            usage: usage.into(),
            system_fingerprint: FINGERPRINT,
        }
    }
}

/// Makes the chunks of a streamed answer.
pub(crate) struct ChunkMaker {
    head: Head,
    options: StreamOptions,
    with_logprobs: bool,
    n_choices: usize,
}

impl ChunkMaker {
    pub(crate) fn new(
        head: Head,
        options: StreamOptions,
        with_logprobs: bool,
        n_choices: usize,
    ) -> Self {
        Self { head, options, with_logprobs, n_choices }
    }

    fn chunk(&self, choices: Vec<ChunkChoice>, usage: Option<Usage>) -> ChatChunk<'_> {
        ChatChunk {
            id: &self.head.id,
            object: "chat.completion.chunk",
            created: self.head.created,
            model: &self.head.model,
            system_fingerprint: FINGERPRINT,
            choices,
            usage: self.options.include_usage.then_some(usage.map(Into::into)),
        }
    }
}

impl StreamState for ChunkMaker {
    fn start(&mut self, out: &mut Chunks) {
        for index in 0..self.n_choices {
            let delta = Delta { role: Some("assistant"), content: Some(String::new()) };
            let choice = ChunkChoice { index, delta, logprobs: None, finish_reason: None };
            out.push(&self.chunk(vec![choice], None));
        }
    }

    fn event(&mut self, event: Event, out: &mut Chunks) {
        let index = event.choice;
        let logprobs = if self.with_logprobs { logprobs(event.tokens) } else { Vec::new() };
        if !event.text.is_empty() || !logprobs.is_empty() {
            let delta = Delta { role: None, content: Some(event.text) };
            let logprobs =
                self.with_logprobs.then_some(Logprobs { content: logprobs, refusal: None });
            let choice = ChunkChoice { index, delta, logprobs, finish_reason: None };
            out.push(&self.chunk(vec![choice], None));
        }
        let Some(finish) = event.finish else { return };
        match finish_reason(&finish) {
            Ok(reason) => {
                let delta = Delta::default();
                let finish_reason = Some(reason);
                let choice = ChunkChoice { index, delta, logprobs: None, finish_reason };
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
