//! Entries for fuzz targets: each takes any bytes, and panics where the server would break a promise.
//!
//! They are no interface for programs and may change at any time.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::time::Duration;

use pelton_base::{FinishReason, TokenId, Usage, limits};
use pelton_llm::{
    EmbedInput, Event, EventToken, Finish, Generation, Logprob, Prompt, Released, Timings, TopToken,
};
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::error::ApiError;
use crate::limits::{MESSAGES, PROMPT_TOKENS};
use crate::routes::{chat, completions, embeddings, messages, rerank, responses, score};
use crate::wire::{Ask, Head, Source, StreamOptions, StreamState, respond};

/// A body of `POST /v1/chat/completions`.
pub fn chat(body: &[u8]) {
    let read = chat::parse(body, Generation::default());
    if let Some((request, _)) = settle(body, read) {
        assert!((1..=MESSAGES).contains(&request.messages.len()));
        assert!(request.messages.iter().all(|message| message.content.is_string()));
        check_generation(&request.generation);
    }
}

/// A body of `POST /v1/completions`.
pub fn completions(body: &[u8]) {
    let read = completions::parse(body, Generation::default());
    if let Some((request, _)) = settle(body, read) {
        assert!((1..=limits::PROMPTS).contains(&request.prompts.len()));
        let n_tokens = request.prompts.iter().map(|prompt| match prompt {
            Prompt::Text(_) | Prompt::Gap { .. } => 0,
            Prompt::Tokens(tokens) => tokens.len(),
        });
        assert!(n_tokens.sum::<usize>() <= PROMPT_TOKENS);
        check_generation(&request.generation);
    }
}

/// A body of `POST /v1/messages`, and of `count_tokens`.
pub fn messages(body: &[u8]) {
    if let Some((messages, generation)) = settle(body, messages::parse(body)) {
        assert!(!messages.is_empty());
        assert!(generation.max_tokens.is_some_and(|most| most > 0));
        check_generation(&generation);
    }
}

/// A body of `POST /v1/responses`.
pub fn responses(body: &[u8]) {
    if let Some((messages, generation)) = settle(body, responses::parse(body)) {
        assert!((1..=MESSAGES).contains(&messages.len()));
        check_generation(&generation);
    }
}

/// A body of `POST /v1/embeddings`.
pub fn embeddings(body: &[u8]) {
    if let Some(request) = settle(body, embeddings::parse(body)) {
        assert!((1..=limits::EMBED_INPUTS).contains(&request.inputs.len()));
        let is_text = |input: &EmbedInput| matches!(input, EmbedInput::Text(_));
        let n_texts = request.inputs.iter().filter(|input| is_text(input)).count();
        assert!(n_texts == 0 || n_texts == request.inputs.len(), "texts and tokens are not mixed");
    }
}

/// A body of `POST /v1/rerank`.
pub fn rerank(body: &[u8]) {
    if let Some(request) = settle(body, rerank::parse(body)) {
        assert!(request.queries.len() == 1 && !request.documents.is_empty());
        assert!(request.documents.len() <= limits::EMBED_INPUTS);
    }
}

/// A body of `POST /v1/score`.
pub fn score(body: &[u8]) {
    if let Some(request) = settle(body, score::parse(body)) {
        let (n, m) = (request.queries.len(), request.documents.len());
        assert!((1..=limits::EMBED_INPUTS).contains(&m) && (n == 1 || n == m));
    }
}

/// Events, which both endpoints write as streams.
///
/// An event is a byte of flags (1: the second answer; 2: log probabilities; 4: the end; 8: a failure,
/// if it is the end), a byte with a length, and so many bytes of text.
pub fn sse(script: &[u8]) {
    let events = events(script);
    let options = StreamOptions { include_usage: true, ..StreamOptions::default() };
    let head = || Head { id: "id".to_owned(), created: 0, model: "a/b".to_owned() };
    let ask = Ask { stream: Some(options), logprobs: true, ..Ask::default() };
    let chat = chat::ChunkMaker::new(head(), options, ask, chat::Before::of(2));
    check_stream(chat, events.clone(), "/delta/content");
    let pieces = completions::Pieces::new(2, ask, Vec::new());
    check_stream(completions::ChunkMaker::new(head(), options, pieces), events, "/text");
}

/// The request, or `None` after a refusal that a client can read.
fn settle<T>(body: &[u8], read: Result<T, ApiError>) -> Option<T> {
    match read {
        Ok(request) => {
            serde_json::from_slice::<IgnoredAny>(body).expect("an accepted body is JSON");
            if let Err(error) = serde_json::from_slice::<Distinct>(body) {
                // Fields that are ignored may hold numbers larger than any that are read.
                let is_large = error.to_string().starts_with("number out of range");
                assert!(is_large, "an accepted body says nothing twice: {error}");
            }
            Some(request)
        }
        Err(error) => {
            assert_eq!(error.status, 400);
            let message = &error.body.message;
            assert!(!message.is_empty() && message.len() < 20_000, "{} bytes", message.len());
            serde_json::to_string(&error.envelope()).expect("an error is plain data");
            None
        }
    }
}

/// JSON in which no object has a field twice.
struct Distinct;

impl<'de> Deserialize<'de> for Distinct {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Distinct {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Self, A::Error> {
        while elements.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self, A::Error> {
        let mut names = HashSet::new();
        while let Some((name, Self)) = fields.next_entry::<String, Self>()? {
            if !names.insert(name) {
                return Err(A::Error::custom("a field twice"));
            }
        }
        Ok(self)
    }
}

fn check_generation(generation: &Generation) {
    generation.validate().expect("ranges are checked");
    assert!(generation.sampling.logit_bias.len() <= limits::LOGIT_BIAS_ENTRIES);
    assert!(generation.sampling.logit_bias.iter().all(|(_, bias)| bias.is_finite()));
}

/// The events of a script; an answer has none after its end.
fn events(mut script: &[u8]) -> VecDeque<Event> {
    let mut events = VecDeque::new();
    let mut has_ended = [false; 2];
    while let [flags, n_bytes, rest @ ..] = script {
        let (bytes, rest) = rest.split_at(usize::from(*n_bytes).min(rest.len()));
        script = rest;
        let choice = usize::from(flags & 1);
        if has_ended[choice] {
            continue;
        }
        let is_end = flags & 4 > 0;
        has_ended[choice] = is_end;
        let reason = if flags & 8 > 0 { FinishReason::Error } else { FinishReason::Stop };
        let usage = Usage::default();
        let finish = is_end.then_some(Finish::new(reason, usage));
        let text = String::from_utf8_lossy(bytes).into_owned();
        let tokens = if flags & 2 > 0 { vec![token(bytes)] } else { Vec::new() };
        events.push_back(Event { text, tokens, finish, ..Event::new(choice) });
    }
    events
}

fn token(bytes: &[u8]) -> EventToken {
    let (id, bytes) = (TokenId(0), bytes.to_vec());
    let top = vec![TopToken { id, bytes: bytes.clone(), logprob: f32::NEG_INFINITY }];
    let logprob = Some(Logprob { logprob: -0.5, top });
    EventToken { id, bytes, is_special: false, logprob, released: Released::Nothing }
}

impl Source for VecDeque<Event> {
    async fn next(&mut self) -> Option<Event> {
        self.pop_front()
    }

    fn usage(&self) -> Usage {
        Usage::default()
    }

    fn timings(&self) -> Timings {
        Timings::default()
    }

    fn prompt_progress(&self) -> (usize, usize) {
        (0, 0)
    }
}

/// Writes a stream and reads it as a client does; `path` leads to the text of a choice.
fn check_stream(state: impl StreamState, events: VecDeque<Event>, path: &str) {
    let mut texts = [String::new(), String::new()];
    events.iter().for_each(|event| texts[event.choice].push_str(&event.text));
    let is_failure = |event: &Event| event.finish.as_ref().is_some_and(has_failed);
    let fails = events.iter().any(is_failure);

    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let body = runtime.expect("a runtime").block_on(async {
        let response = respond(events, None, state, false, Duration::from_secs(3600));
        axum::body::to_bytes(response.into_body(), usize::MAX).await.expect("no source fails")
    });
    let body = std::str::from_utf8(&body).expect("a stream is UTF-8");
    let mut frames: Vec<&str> = body.split_terminator("\n\n").collect();
    assert_eq!(frames.pop(), Some("data: [DONE]"));
    let (mut read, mut n_errors) = ([String::new(), String::new()], 0);
    for frame in frames {
        let data = frame.strip_prefix("data: ").expect("one field per event");
        assert!(!data.contains(['\n', '\r']), "{data:?}");
        let chunk: Value = serde_json::from_str(data).expect("a chunk is JSON");
        n_errors += usize::from(chunk.get("error").is_some());
        for choice in chunk["choices"].as_array().into_iter().flatten() {
            let index = choice["index"].as_u64().expect("an index") as usize;
            read[index].push_str(choice.pointer(path).and_then(Value::as_str).unwrap_or_default());
        }
    }
    assert_eq!(n_errors, usize::from(fails));
    for (read, text) in read.iter().zip(&texts) {
        // A failure ends the stream, so what comes after it is not sent.
        assert!(read == text || fails && text.starts_with(read.as_str()), "{read:?} for {text:?}");
    }
}

fn has_failed(finish: &Finish) -> bool {
    finish.reason == FinishReason::Error
}
