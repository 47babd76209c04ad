//! From events of the library to JSON for clients.

use pelton_base::{TokenId, Usage};
use pelton_llm::{BestOf, Event, EventToken, PromptToken};
use serde_json::{Map, Value};

use super::types::{Choice, CompletionAnswer, Logprobs};
use crate::error::ApiError;
use crate::wire::{
    Ask, Chunks, FINGERPRINT, Head, Ids, Now, Shown, StopReason, StreamOptions, StreamState,
    finish_reason, finite, obfuscation,
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
        timings: None,
        obfuscation: None,
    }
}

/// A prompt as the answers to it show it.
#[derive(Clone, Debug)]
pub(crate) struct Echo {
    /// Its text, where it is echoed.
    pub(crate) text: String,
    /// Its tokens, where they are asked for.
    pub(crate) tokens: Option<Ids>,
}

/// Turns events into choices, and counts the characters of each choice so far.
pub(crate) struct Pieces {
    /// Where the next token of each choice begins; `None` before the first event.
    offsets: Vec<Option<Offset>>,
    ask: Ask,
    /// One per prompt, or none where prompts are not shown.
    echoes: Vec<Echo>,
    /// Likeliest tokens of each place.
    n_top: usize,
}

impl Pieces {
    /// Pieces of `n_choices` answers to the prompts of `echoes`, which share them evenly.
    pub(crate) fn new(n_choices: usize, ask: Ask, echoes: Vec<Echo>) -> Self {
        Self { offsets: vec![None; n_choices], ask, echoes, n_top: usize::MAX }
    }

    /// The same with this many of the likeliest tokens in each place of an echoed prompt.
    pub(crate) fn with_top(self, n_top: usize) -> Self {
        Self { n_top, ..self }
    }

    /// The prompt of a choice.
    fn echo(&self, idx: usize) -> Option<&Echo> {
        let per_prompt = self.offsets.len() / self.echoes.len().max(1);
        self.echoes.get(idx / per_prompt)
    }

    fn choice(&mut self, event: Event) -> Result<Choice, ApiError> {
        let Shown { echo, .. } = self.ask.shown;
        let idx = event.choice;
        let reason = event.finish.as_ref().map(finish_reason).transpose()?;
        let stop_reason = event.finish.as_ref().and_then(StopReason::of);
        let is_first = self.offsets[idx].is_none();
        let mut offset = self.offsets[idx].take().unwrap_or_default();
        let mut choice = Choice { finish_reason: reason, stop_reason, ..empty(idx) };
        choice.token_ids = self.ask.shown.ids(&event.tokens);
        choice.logprobs = self.ask.logprobs.then(Logprobs::default);
        if is_first {
            let shown = self.echo(idx).cloned();
            choice.prompt_token_ids = shown.as_ref().and_then(|echo| echo.tokens.clone());
            choice.prompt_logprobs = self.ask.shown.scores(event.prompt.as_ref());
            if echo {
                choice.text = shown.map(|echo| echo.text).unwrap_or_default();
                if let (Some(logprobs), Some(prompt)) = (&mut choice.logprobs, &event.prompt) {
                    self.add_prompt(logprobs, prompt, &choice.text, &mut offset);
                }
            }
        }
        choice.text.push_str(&event.text);
        if let Some(logprobs) = &mut choice.logprobs {
            for token in event.tokens {
                // Control tokens have no text, so they have log probabilities only behind a prompt,
                // whose control tokens are listed too.
                if token.logprob.is_some() && (echo || !token.is_special) {
                    self.add(logprobs, &token, usize::MAX, &mut offset);
                }
            }
        }
        self.offsets[idx] = Some(offset);
        Ok(choice)
    }

    /// Adds the tokens of a prompt that is shown as `text`. It may show control tokens, which have
    /// no text in answers.
    fn add_prompt(
        &self,
        out: &mut Logprobs,
        prompt: &[PromptToken],
        text: &str,
        offset: &mut Offset,
    ) {
        for PromptToken { token, .. } in prompt {
            self.add(out, token, self.n_top, offset);
            if token.is_special && offset.is_at(text, &token.bytes) {
                offset.pass(&token.bytes);
            }
        }
    }

    /// Adds a token; the first of a prompt has no log probability.
    fn add(&self, out: &mut Logprobs, token: &EventToken, n_top: usize, offset: &mut Offset) {
        let name = |id, bytes: &[u8]| self.ask.shown.name(id, bytes);
        let text = name(token.id, &token.bytes);
        out.text_offset.push(offset.n_chars);
        if !token.is_special {
            offset.pass(&token.bytes);
        }
        let own = token.logprob.as_ref().map(|logprob| finite(logprob.logprob).into());
        let top = token.logprob.as_ref().map(|logprob| {
            let others = logprob.top.iter().take(n_top).filter(|other| other.id != token.id);
            let others =
                others.map(|other| (other.id, name(other.id, &other.bytes), other.logprob));
            by_name([(token.id, text.clone(), logprob.logprob)].into_iter().chain(others))
        });
        out.tokens.push(text);
        out.token_logprobs.push(own);
        out.top_logprobs.push(top);
    }
}

/// Log probabilities by the names of tokens. Tokens that are parts of characters may look alike: one
/// that looks like one before it has its id as name.
fn by_name(tokens: impl Iterator<Item = (TokenId, String, f32)>) -> Map<String, Value> {
    let mut map = Map::new();
    for (id, name, logprob) in tokens {
        let is_taken = map.contains_key(&name);
        let name = if is_taken { Shown::name_by_id(id) } else { name };
        map.insert(name, finite(logprob).into());
    }
    map
}

/// A place in the text of a choice, between two tokens.
#[derive(Clone, Debug, Default)]
struct Offset {
    /// Number of whole characters before it.
    n_chars: usize,
    /// Bytes of the same characters.
    n_bytes: usize,
    /// Bytes before it of a character that is not whole yet.
    begun: Vec<u8>,
}

impl Offset {
    /// Passes a token; bytes that are no text count as the characters that stand for them.
    fn pass(&mut self, bytes: &[u8]) {
        let mut all = std::mem::take(&mut self.begun);
        all.extend_from_slice(bytes);
        let mut chunks = all.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            self.n_chars += chunk.valid().chars().count();
            self.n_bytes += chunk.valid().len();
            let invalid = chunk.invalid();
            let is_last = chunks.peek().is_none();
            // The beginning of a character has an error without a length.
            let is_begun =
                std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
            if is_last && is_begun {
                self.begun = invalid.to_vec();
            } else if !invalid.is_empty() {
                self.n_chars += 1;
                self.n_bytes += char::REPLACEMENT_CHARACTER.len_utf8();
            }
        }
    }

    /// Whether `text` goes on with `bytes` here.
    fn is_at(&self, text: &str, bytes: &[u8]) -> bool {
        let rest = text.as_bytes().get(self.n_bytes..).unwrap_or_default();
        !bytes.is_empty() && rest.starts_with(bytes)
    }
}

/// A choice without any news.
fn empty(index: usize) -> Choice {
    Choice {
        index,
        text: String::new(),
        logprobs: None,
        finish_reason: None,
        stop_reason: None,
        token_ids: None,
        prompt_token_ids: None,
        prompt_logprobs: None,
    }
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
        let Ask { logprobs, shown, .. } = pieces.ask;
        let empty = |index| Choice {
            logprobs: logprobs.then(Logprobs::default),
            token_ids: shown.token_ids.then(Vec::new),
            ..empty(index)
        };
        Self { choices: (0..pieces.offsets.len()).map(empty).collect(), pieces, best }
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
        choice.stop_reason = piece.stop_reason;
        choice.token_ids.iter_mut().for_each(|ids| ids.extend(piece.token_ids.iter().flatten()));
        choice.prompt_token_ids = choice.prompt_token_ids.take().or(piece.prompt_token_ids);
        choice.prompt_logprobs = choice.prompt_logprobs.take().or(piece.prompt_logprobs);
        if let (Some(all), Some(new)) = (&mut choice.logprobs, piece.logprobs) {
            all.tokens.extend(new.tokens);
            all.token_logprobs.extend(new.token_logprobs);
            all.top_logprobs.extend(new.top_logprobs);
            all.text_offset.extend(new.text_offset);
        }
        Ok(())
    }

    /// The whole answer, as JSON.
    pub(crate) fn finish(self, head: Head, now: Now) -> Value {
        let timings = self.pieces.ask.shown.timings.then(|| now.into());
        let choices = match self.best {
            None => self.choices,
            Some(best) => {
                let mut made: Vec<Option<Choice>> = self.choices.into_iter().map(Some).collect();
                let kept = best.choices().into_iter().enumerate();
                kept.filter_map(|(index, idx)| Some(Choice { index, ..made[idx].take()? }))
                    .collect()
            }
        };
        let answer = CompletionAnswer { timings, ..answer(&head, choices, Some(Some(now.usage))) };
        serde_json::to_value(answer).expect("invariant: answers are plain data")
    }
}

/// Makes the chunks of a streamed answer.
pub(crate) struct ChunkMaker {
    head: Head,
    options: StreamOptions,
    pieces: Pieces,
    now: Now,
}

impl ChunkMaker {
    pub(crate) fn new(head: Head, options: StreamOptions, pieces: Pieces) -> Self {
        Self { head, options, pieces, now: Now::default() }
    }

    fn push(&self, choices: Vec<Choice>, usage: Option<Usage>, out: &mut Chunks) {
        let usage = usage.or(self.options.continuous_usage.then_some(self.now.usage));
        let usage = self.options.include_usage.then_some(usage);
        let n_bytes = choices.iter().map(|choice| choice.text.len()).sum();
        out.push(&CompletionAnswer {
            timings: self.pieces.ask.shown.timings.then(|| self.now.into()),
            obfuscation: self.options.obfuscates.then(|| obfuscation(n_bytes)),
            ..answer(&self.head, choices, usage)
        });
    }
}

impl StreamState for ChunkMaker {
    fn start(&mut self, _out: &mut Chunks) {}

    fn now(&mut self) -> Option<&mut Now> {
        let shows = self.options.continuous_usage || self.pieces.ask.shown.timings;
        shows.then_some(&mut self.now)
    }

    fn event(&mut self, event: Event, out: &mut Chunks) {
        match self.pieces.choice(event) {
            Ok(choice) => {
                let has_logprobs = choice.logprobs.as_ref().is_some_and(|l| !l.tokens.is_empty());
                let has_ids = choice.token_ids.as_ref().is_some_and(|ids| !ids.is_empty())
                    || choice.prompt_token_ids.is_some();
                let has_end = choice.finish_reason.is_some();
                if !choice.text.is_empty() || has_logprobs || has_ids || has_end {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_that_look_alike_are_all_there() {
        let tokens = [(7, "a", -1.0), (200, "\u{fffd}", -2.0), (201, "\u{fffd}", -3.0)];
        let map =
            by_name(tokens.map(|(id, name, x)| (TokenId(id), name.to_owned(), x)).into_iter());
        let expected = serde_json::json!({"a": -1.0, "\u{fffd}": -2.0, "token_id:201": -3.0});
        assert_eq!(Value::Object(map), expected);
    }

    #[test]
    fn offsets_count_whole_characters_and_those_that_stand_for_bytes() {
        let mut offset = Offset::default();
        let mut places = Vec::new();
        // A character in three tokens, one that is broken off, and a byte that is no text.
        for bytes in
            [&b"a"[..], &[0xe6], &[0x97], &[0xa5], b"b", &[0xe6, 0x9c], b"c", &[0xff], b"d"]
        {
            offset.pass(bytes);
            places.push((offset.n_chars, offset.n_bytes));
        }
        let expected = [(1, 1), (1, 1), (1, 1), (2, 4), (3, 5), (3, 5), (5, 9), (6, 12), (7, 13)];
        assert_eq!(places, expected);
        let text = "a\u{65e5}b\u{fffd}c\u{fffd}d<end>";
        assert_eq!(text.len(), 13 + 5);
        assert!(offset.is_at(text, b"<end>") && !offset.is_at(text, b"<"[..0].as_ref()));
        assert!(!offset.is_at("a", b"<end>"), "behind the text");
    }
}
