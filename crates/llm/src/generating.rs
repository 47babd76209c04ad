//! A growing answer: token streams in, events out.
//!
//! Each answer is one stream of the engine with its own detokenizer and stop matcher. Dropping a
//! [`Generating`] drops the streams, and the engine frees each within one step.

mod choice;
mod described;
mod parked;

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use pelton_base::FinishReason::{self, Length};
use pelton_base::{TokenId, Usage};
use pelton_engine::{Fault, SampledToken, ScoredToken, TokenEvent, TokenStream, Trace};
use pelton_parse::{Reader, ReaderOptions};
use pelton_text::{Detokenizer, Tokenizer};

use crate::beam::{BeamScore, Searches};
use crate::border::{DETOKENIZER, guard};
use crate::event::{Event, Milestones, PromptToken, Released, Timings};
use crate::stop::StopMatcher;
use choice::Choice;
use described::{describe, scored_prompt};
pub(crate) use parked::block_on;

/// The answers to one request while they grow.
#[must_use = "dropping it aborts the request"]
pub struct Generating {
    tokenizer: Arc<Tokenizer>,
    /// End tokens of the model, whose text is never shown.
    eos: Vec<TokenId>,
    /// Control tokens whose text the readers must see.
    control: Vec<TokenId>,
    stop: Vec<String>,
    texts: TextOptions,
    /// Tokens of an answer before a stop string may end it.
    min_tokens: usize,
    choices: Vec<Choice>,
    /// Beam searches, whose answers come whole; else each choice has a stream.
    searches: Searches,
    /// Choice that is asked first next time, so that no choice waits for all others.
    next_idx: usize,
    submitted: Instant,
    at: Milestones,
    prompts: Vec<PromptState>,
    /// Answers to each prompt.
    per_prompt: usize,
    max_tokens: Option<usize>,
    /// The events of an earlier request that are still to be repeated; `None` where the answers
    /// are computed.
    replay: Option<Replay>,
}

/// Events of an earlier request.
struct Replay {
    events: Arc<Vec<Event>>,
    next: usize,
}

/// Texts and tokens that answers have or lack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TextOptions {
    /// Whether the text that ends an answer is part of it.
    pub(crate) include_stop: bool,
    /// Whether control tokens have text.
    pub(crate) keep_special: bool,
    /// Whether the answers have no token: the prompt alone is wanted.
    pub(crate) is_empty: bool,
}

/// One prompt, while it is answered.
struct PromptState {
    tokens: Vec<TokenId>,
    scores: Scores,
}

/// The scores of a prompt, which come with the first event of its first answer.
enum Scores {
    /// Events of further answers wait for them.
    Awaited,
    /// `None` where they were not asked for, or did not come.
    Known(Option<Arc<[PromptToken]>>),
}

/// The parts that a [`Generating`] is built from.
pub(crate) struct Start {
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) eos: Vec<TokenId>,
    pub(crate) stop: Vec<String>,
    pub(crate) texts: TextOptions,
    pub(crate) min_tokens: usize,
    /// One stream per answer; none where beams are searched.
    pub(crate) streams: Vec<TokenStream>,
    pub(crate) searches: Searches,
    pub(crate) prompts: Vec<Vec<TokenId>>,
    /// Whether the tokens of prompts are scored.
    pub(crate) is_scored: bool,
    pub(crate) submitted: Instant,
    /// Answers to each prompt, at least one; the answers to one prompt lie side by side.
    pub(crate) per_prompt: usize,
    /// Most tokens of an answer, where the request says so.
    pub(crate) max_tokens: Option<usize>,
    /// How thoughts and calls are taken out of the text; `None` where the text is all.
    pub(crate) reader: Option<ReaderOptions>,
    /// Control tokens whose text the reader must see.
    pub(crate) control: Vec<TokenId>,
}

impl Generating {
    pub(crate) fn new(start: Start) -> Self {
        let n_choices = start.prompts.len() * start.per_prompt;
        let keep_special = start.texts.keep_special;
        let mut streams = start.streams.into_iter();
        let choices = (0..n_choices)
            .map(|idx| start.prompts[idx / start.per_prompt].len())
            .map(|prompt_tokens| Choice {
                stream: streams.next(),
                detokenizer: Detokenizer::continuing(&start.tokenizer, !keep_special),
                stop: StopMatcher::new(&start.stop),
                usage: Usage { prompt_tokens, ..Usage::default() },
                reader: start.reader.as_ref().map(|options| Reader::new(options.clone())),
                n_undecided: 0,
                n_calls: 0,
                malformed_call: false,
                has_begun: false,
                trace: None,
            })
            .collect();
        let state = |tokens| {
            let scores = if start.is_scored { Scores::Awaited } else { Scores::Known(None) };
            PromptState { tokens, scores }
        };
        Self {
            tokenizer: start.tokenizer,
            eos: start.eos,
            // The text of every control token is there already.
            control: if keep_special { Vec::new() } else { start.control },
            stop: start.stop,
            texts: start.texts,
            min_tokens: start.min_tokens,
            choices,
            searches: start.searches,
            next_idx: 0,
            submitted: start.submitted,
            at: Milestones::default(),
            prompts: start.prompts.into_iter().map(state).collect(),
            per_prompt: start.per_prompt,
            max_tokens: start.max_tokens,
            replay: None,
        }
    }

    /// Tells the events of an earlier request with the same answers again. All tokens of its
    /// prompts count as cached.
    pub(crate) fn replay(
        tokenizer: &Arc<Tokenizer>,
        events: Arc<Vec<Event>>,
        prompts: Vec<Vec<TokenId>>,
        per_prompt: usize,
        max_tokens: Option<usize>,
    ) -> Self {
        let texts = TextOptions { include_stop: false, keep_special: false, is_empty: false };
        let start = Start {
            tokenizer: Arc::clone(tokenizer),
            eos: Vec::new(),
            stop: Vec::new(),
            texts,
            min_tokens: 0,
            streams: Vec::new(),
            searches: Searches::new(Vec::new(), per_prompt, false),
            prompts,
            is_scored: false,
            submitted: Instant::now(),
            per_prompt,
            reader: None,
            control: Vec::new(),
            max_tokens,
        };
        Self { replay: Some(Replay { events, next: 0 }), ..Self::new(start) }
    }

    /// Whether the answers are those of an earlier request.
    pub fn is_replay(&self) -> bool {
        self.replay.is_some()
    }

    /// The next event that is repeated.
    fn next_replayed(&mut self) -> Option<Event> {
        let replay = self.replay.as_mut()?;
        let mut event = replay.events.get(replay.next)?.clone();
        replay.next += 1;
        let at = self.submitted.elapsed();
        if !event.tokens.is_empty() {
            self.at.started.get_or_insert(at);
            self.at.first_token.get_or_insert(at);
            self.at.last_token = Some(at);
        }
        let usage = &mut self.choices[event.choice].usage;
        usage.completion_tokens += event.tokens.len();
        usage.cached_tokens = usage.prompt_tokens;
        if let Some(finish) = &mut event.finish {
            finish.usage.cached_tokens = finish.usage.prompt_tokens;
            *usage = finish.usage;
        }
        Some(event)
    }

    /// The next event of any answer; `None` when all have ended.
    ///
    /// May be cancelled between events without losing one.
    pub async fn next(&mut self) -> Option<Event> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// As [`next`](Self::next), for callers outside an async runtime.
    pub fn blocking_next(&mut self) -> Option<Event> {
        block_on(self.next())
    }

    /// Asks the answers for their next event in turn.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        if self.replay.is_some() {
            return Poll::Ready(self.next_replayed());
        }
        let n_choices = self.choices.len();
        let mut is_any_open = match self.searches.poll(cx) {
            Poll::Ready(None) => false,
            Poll::Pending => true,
            Poll::Ready(Some((idx, event))) => {
                let since = |at: Instant| at.saturating_duration_since(self.submitted);
                self.at.first_token = self.searches.first_token_at().map(since);
                return Poll::Ready(Some(self.accept_guarded(idx, Some(event))));
            }
        };
        for offset in 0..n_choices {
            let idx = (self.next_idx + offset) % n_choices;
            if !self.may_begin(idx) {
                is_any_open = true;
                continue;
            }
            let Some(stream) = &mut self.choices[idx].stream else { continue };
            is_any_open = true;
            // The future of a receive holds no token, so a new one each time loses none.
            let Poll::Ready(received) = pin!(stream.recv()).poll(cx) else { continue };
            self.next_idx = idx + 1;
            return Poll::Ready(Some(self.accept_guarded(idx, received)));
        }
        if is_any_open { Poll::Pending } else { Poll::Ready(None) }
    }

    /// Whether the events of an answer may come: those of the first answer to a prompt, and of further
    /// ones once the scores of the prompt are known.
    fn may_begin(&self, idx: usize) -> bool {
        let prompt = &self.prompts[idx / self.per_prompt];
        idx.is_multiple_of(self.per_prompt) || matches!(prompt.scores, Scores::Known(_))
    }

    /// The tokens of the prompt of an answer.
    ///
    /// # Panics
    ///
    /// When there is no such answer.
    pub fn prompt(&self, choice: usize) -> &[TokenId] {
        &self.prompts[choice / self.per_prompt].tokens
    }

    /// Number of answers.
    pub fn n_choices(&self) -> usize {
        self.choices.len()
    }

    /// The steps of each answer so far, in the order of the answers; none for beam searches.
    pub fn traces(&self) -> Vec<Trace> {
        let trace = |choice: &Choice| {
            choice.stream.as_ref().map(TokenStream::trace).or_else(|| choice.trace.clone())
        };
        self.choices.iter().filter_map(trace).collect()
    }

    /// Most tokens of an answer, where the request says so.
    pub fn max_tokens(&self) -> Option<usize> {
        self.max_tokens
    }

    /// Tokens of the longest answer so far.
    pub fn longest_tokens(&self) -> usize {
        let lengths = self.choices.iter().map(|choice| choice.usage.completion_tokens);
        lengths.max().unwrap_or_default()
    }

    /// Tokens of all prompts, each counted once, and of all answers so far.
    ///
    /// Cached tokens are counted for the first answer to each prompt only: further answers share
    /// its prompt and would count them again.
    pub fn usage(&self) -> Usage {
        let firsts = self.choices.iter().step_by(self.per_prompt);
        Usage {
            prompt_tokens: self.prompt_tokens(),
            completion_tokens: self.sum(|usage| usage.completion_tokens),
            cached_tokens: firsts.map(|c| c.usage.cached_tokens).sum(),
            accepted_prediction_tokens: self.sum(|usage| usage.accepted_prediction_tokens),
            rejected_prediction_tokens: self.sum(|usage| usage.rejected_prediction_tokens),
            reasoning_tokens: self.sum(|usage| usage.reasoning_tokens),
        }
    }

    fn sum(&self, of: fn(&Usage) -> usize) -> usize {
        self.choices.iter().map(|choice| of(&choice.usage)).sum()
    }

    /// Tokens of all prompts that are computed or cached so far, and in all. Each prompt counts once.
    pub fn prompt_progress(&self) -> (usize, usize) {
        let firsts = self.choices.iter().enumerate().step_by(self.per_prompt);
        let n_computed = firsts.map(|(idx, choice)| {
            let stream = choice.stream.as_ref().filter(|_| choice.usage.completion_tokens == 0);
            let n_computed = stream.map(TokenStream::n_computed);
            n_computed.or(self.searches.n_computed(idx)).unwrap_or(choice.usage.prompt_tokens)
        });
        (n_computed.sum(), self.prompt_tokens())
    }

    /// Each prompt counted once.
    fn prompt_tokens(&self) -> usize {
        self.prompts.iter().map(|prompt| prompt.tokens.len()).sum()
    }

    /// Tokens of the longest beam of a search under way.
    pub(crate) fn beam_tokens(&self) -> usize {
        self.searches.n_tokens()
    }

    /// Times of the request so far.
    pub fn timings(&self) -> Timings {
        Timings::new(self.usage(), self.choices.len(), self.at)
    }

    /// As [`accept`](Self::accept); a panic ends the answer with an error.
    fn accept_guarded(&mut self, idx: usize, received: Option<TokenEvent>) -> Event {
        // A panic may leave the answer's detokenizer and stop strings half changed. They are not used
        // again, because an answer without a stream gets no further event.
        let accepted = guard(DETOKENIZER, || self.accept(idx, received));
        accepted.unwrap_or_else(|panicked| {
            let choice = &mut self.choices[idx];
            choice.stream = None;
            let reason = FinishReason::Error;
            let finish = choice.finish(reason, (None, None), Some(panicked.into()), None);
            if let scores @ Scores::Awaited = &mut self.prompts[idx / self.per_prompt].scores {
                *scores = Scores::Known(None);
            }
            Event { finish: Some(finish), ..Event::new(idx) }
        })
    }

    /// Turns an event of the engine for one answer into the event for the caller.
    fn accept(&mut self, idx: usize, received: Option<TokenEvent>) -> Event {
        let mut event = Event::new(idx);
        // A stream ends without a reason when the engine has ended.
        let Some(mut received) = received else {
            self.note_prompt(idx, None, &mut event);
            self.end(idx, FinishReason::Aborted, End::default(), &mut event);
            return event;
        };
        self.note_times(&received);
        let has_failed =
            matches!(received.finish, Some(FinishReason::Error | FinishReason::Aborted));
        let scores = std::mem::take(&mut received.prompt);
        self.note_prompt(idx, Some(scores).filter(|_| !has_failed), &mut event);
        if self.texts.is_empty {
            received.tokens.clear();
            received.finish = received.finish.map(|how| if has_failed { how } else { Length });
        }
        let mut end = End {
            beam: received.beams.first().map(|beam| BeamScore {
                cumulative_logprob: beam.cumulative_logprob,
                score: beam.score,
            }),
            ..End::default()
        };
        // Tokens are counted here, because a stop string may end the answer within a step.
        let usage = &mut self.choices[idx].usage;
        let Usage { completion_tokens, reasoning_tokens, .. } = *usage;
        *usage = Usage { completion_tokens, reasoning_tokens, ..received.usage };
        let is_stop = received.finish == Some(FinishReason::Stop);
        let n_tokens = received.tokens.len();
        for (i, sampled) in received.tokens.into_iter().enumerate() {
            let is_last = is_stop && i + 1 == n_tokens;
            end.token = Some(sampled.token).filter(|token| is_last && !self.eos.contains(token));
            self.take_token(idx, sampled, is_last, &mut end, &mut event);
            if end.stop.is_some() {
                break;
            }
        }
        let reason = if end.stop.is_some() { Some(FinishReason::Stop) } else { received.finish };
        if let Some(reason) = reason {
            end.fault = received.fault;
            self.end(idx, reason, end, &mut event);
        }
        event
    }

    /// Adds a token to an answer; `is_last` says that it ends the answer.
    fn take_token(
        &mut self,
        idx: usize,
        sampled: SampledToken,
        is_last: bool,
        end: &mut End,
        event: &mut Event,
    ) {
        let Self { choices, tokenizer, texts, eos, .. } = self;
        let (choice, id) = (&mut choices[idx], sampled.token);
        let is_hidden = is_last && eos.contains(&id) && !(texts.include_stop && texts.keep_special);
        choice.usage.completion_tokens += 1;
        event.tokens.push(describe(tokenizer, sampled, is_hidden, texts.keep_special));
        if is_hidden {
            return;
        }
        let (n_text, n_other) = event.sizes();
        let piece = choice.text_of(id, tokenizer, &self.control);
        let outcome = choice.watch(&piece, self.min_tokens);
        choice.read(&outcome.text, event);
        self.stopped(idx, outcome.matched, end, event);
        self.choices[idx].count_thought();
        let released = match event.sizes() {
            (text, _) if text > n_text => Released::Text(text - n_text),
            (_, other) if other > n_other => Released::Other,
            _ => Released::Nothing,
        };
        if let Some(token) = event.tokens.last_mut() {
            token.released = released;
        }
    }

    /// Notes that a stop string ended an answer, if one did.
    fn stopped(&mut self, idx: usize, matched: Option<usize>, end: &mut End, event: &mut Event) {
        let Some(matched) = matched else { return };
        let stop = self.stop[matched].clone();
        if self.texts.include_stop {
            self.choices[idx].read(&stop, event);
        }
        *end = End { stop: Some(stop), token: None, ..std::mem::take(end) };
    }

    /// Ends an answer: text that was held back is part of it now.
    fn end(&mut self, idx: usize, mut reason: FinishReason, mut end: End, event: &mut Event) {
        if end.stop.is_none() {
            let choice = &mut self.choices[idx];
            let piece = choice.detokenizer.flush();
            let outcome = choice.watch(&piece, self.min_tokens);
            choice.read(&outcome.text, event);
            match outcome.matched {
                Some(_) => reason = FinishReason::Stop,
                None => {
                    let rest = choice.stop.finish();
                    choice.read(&rest, event);
                }
            }
            self.stopped(idx, outcome.matched, &mut end, event);
        }
        let choice = &mut self.choices[idx];
        // Dropping the stream tells the engine that a stop string ended the answer.
        choice.trace = choice.stream.take().map(|stream| stream.trace());
        choice.end(event);
        let End { stop, token, fault, beam } = end;
        event.finish = Some(choice.finish(reason, (stop, token), fault, beam));
    }

    fn note_times(&mut self, received: &TokenEvent) {
        let since = |at: Instant| at.saturating_duration_since(self.submitted);
        let started = received.started_at.map(since);
        self.at.started = [self.at.started, started].into_iter().flatten().min();
        if !received.tokens.is_empty() {
            let at = since(received.at);
            self.at.first_token.get_or_insert(at);
            self.at.last_token = Some(at);
        }
    }

    /// Puts the prompt into the first event of an answer, where it is scored; the first answer to a
    /// prompt brings the scores.
    fn note_prompt(&mut self, idx: usize, scores: Option<Vec<ScoredToken>>, event: &mut Event) {
        let PromptState { tokens, scores: known } = &mut self.prompts[idx / self.per_prompt];
        if let Scores::Awaited = known {
            let scored = scores.map(|scores| scored_prompt(&self.tokenizer, tokens, scores));
            *known = Scores::Known(scored);
        }
        if let Scores::Known(Some(prompt)) = known
            && !std::mem::replace(&mut self.choices[idx].has_begun, true)
        {
            event.prompt = Some(Arc::clone(prompt));
        }
    }
}

/// How an answer ended.
#[derive(Default)]
struct End {
    /// The stop string that ended it.
    stop: Option<String>,
    /// The stop token that ended it.
    token: Option<TokenId>,
    fault: Option<Fault>,
    beam: Option<BeamScore>,
}

impl std::fmt::Debug for Generating {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let n_open = self.choices.iter().filter(|c| c.stream.is_some()).count();
        f.debug_struct("Generating")
            .field("n_choices", &self.choices.len())
            .field("n_open", &n_open)
            .field("usage", &self.usage())
            .finish_non_exhaustive()
    }
}
