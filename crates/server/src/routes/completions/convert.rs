//! From events of the library to JSON for clients.

use pelton_base::Usage;
use pelton_llm::{BestOf, Event, EventToken};
use serde_json::{Map, Value};

use super::types::{Choice, CompletionAnswer, Logprobs};
use crate::error::ApiError;
use crate::wire::{
    Chunks, FINGERPRINT, Head, StreamOptions, StreamState, finish_reason, finite, token_text,
};

/// A piece of an answer, or all of it.
fn answer(head: &Head, choices: Vec<Choice>, usage: Option<Option<Usage>>) -> CompletionAnswer<'_> {
    CompletionAnswer {
        id: &head.id,
        object: "text_completion",
        created: head.created,
        model: &head.model,
        system_fingerprint: FINGERPRINT,
        choices,
        usage: usage.map(|usage| usage.map(Into::into)),
    }
}

/// Turns events into choices, and counts the characters of each choice so far.
pub(crate) struct Pieces {
    /// Characters of the tokens so far, per choice.
    n_chars: Vec<usize>,
    with_logprobs: bool,
}

impl Pieces {
    pub(crate) fn new(n_choices: usize, with_logprobs: bool) -> Self {
        Self { n_chars: vec![0; n_choices], with_logprobs }
    }

    fn choice(&mut self, event: Event) -> Result<Choice, ApiError> {
        let finish_reason = event.finish.as_ref().map(finish_reason).transpose()?;
        let n_chars = &mut self.n_chars[event.choice];
        let logprobs = self.with_logprobs.then(|| logprobs(event.tokens, n_chars));
        Ok(Choice { index: event.choice, text: event.text, logprobs, finish_reason })
    }
}

fn logprobs(tokens: Vec<EventToken>, n_chars: &mut usize) -> Logprobs {
    let mut out = Logprobs::default();
    // Control tokens have no text, so they have no log probabilities here.
    for token in tokens.into_iter().filter(|token| !token.is_special) {
        let Some(logprob) = token.logprob else { continue };
        let text = token_text(&token.bytes);
        let mut top = Map::new();
        top.insert(text.clone(), Value::from(finite(logprob.logprob)));
        for entry in logprob.top {
            // Tokens that are parts of characters may look alike; the likeliest of them stays.
            top.entry(token_text(&entry.bytes)).or_insert(Value::from(finite(entry.logprob)));
        }
        out.text_offset.push(*n_chars);
        *n_chars += text.chars().count();
        out.tokens.push(text);
        out.token_logprobs.push(finite(logprob.logprob));
        out.top_logprobs.push(top);
    }
    out
}

/// Gathers the events of an answer in one piece.
pub(crate) struct Gatherer {
    pieces: Pieces,
    choices: Vec<Choice>,
    /// Ranking of the answers, where more answers are generated than returned.
    best: Option<BestOf>,
}

impl Gatherer {
    pub(crate) fn new(pieces: Pieces, best: Option<BestOf>) -> Self {
        let empty = |index| Choice {
            index,
            text: String::new(),
            logprobs: pieces.with_logprobs.then(Logprobs::default),
            finish_reason: None,
        };
        Self { choices: (0..pieces.n_chars.len()).map(empty).collect(), pieces, best }
    }

    /// Adds one event; an answer that failed fails the whole.
    pub(crate) fn add(&mut self, event: Event) -> Result<(), ApiError> {
        if let Some(best) = &mut self.best {
            best.add(&event);
        }
        let piece = self.pieces.choice(event)?;
        let choice = &mut self.choices[piece.index];
        choice.text.push_str(&piece.text);
        choice.finish_reason = piece.finish_reason;
        if let (Some(all), Some(new)) = (&mut choice.logprobs, piece.logprobs) {
            all.tokens.extend(new.tokens);
            all.token_logprobs.extend(new.token_logprobs);
            all.top_logprobs.extend(new.top_logprobs);
            all.text_offset.extend(new.text_offset);
        }
        Ok(())
    }

    /// The whole answer, as JSON.
    pub(crate) fn finish(self, head: Head, usage: Usage) -> Value {
        let choices = match self.best {
            None => self.choices,
            Some(best) => {
                let mut made: Vec<Option<Choice>> = self.choices.into_iter().map(Some).collect();
                let kept = best.choices().into_iter().enumerate();
                kept.filter_map(|(index, idx)| Some(Choice { index, ..made[idx].take()? }))
                    .collect()
            }
        };
        serde_json::to_value(answer(&head, choices, Some(Some(usage))))
            .expect("invariant: answers are plain data")
    }
}

/// Makes the chunks of a streamed answer.
pub(crate) struct ChunkMaker {
    head: Head,
    options: StreamOptions,
    pieces: Pieces,
}

impl ChunkMaker {
    pub(crate) fn new(head: Head, options: StreamOptions, pieces: Pieces) -> Self {
        Self { head, options, pieces }
    }

    fn push(&self, choices: Vec<Choice>, usage: Option<Usage>, out: &mut Chunks) {
        out.push(&answer(&self.head, choices, self.options.include_usage.then_some(usage)));
    }
}

impl StreamState for ChunkMaker {
    fn start(&mut self, _out: &mut Chunks) {}

    fn event(&mut self, event: Event, out: &mut Chunks) {
        match self.pieces.choice(event) {
            Ok(choice) => {
                let has_logprobs = choice.logprobs.as_ref().is_some_and(|l| !l.tokens.is_empty());
                if !choice.text.is_empty() || has_logprobs || choice.finish_reason.is_some() {
                    self.push(vec![choice], None, out);
                }
            }
            Err(error) => out.fail(error),
        }
    }

    fn end(&mut self, usage: Usage, out: &mut Chunks) {
        if self.options.include_usage {
            self.push(Vec::new(), Some(usage), out);
        }
    }
}
