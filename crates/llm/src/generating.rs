//! A growing answer: token streams in, events out.
//!
//! Each answer is one stream of the engine with its own detokenizer and stop matcher. Dropping a
//! [`Generating`] drops the streams, and the engine frees each within one step.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use pelton_base::{FinishReason, TokenId, Usage};
use pelton_engine::{Fault, SampledToken, TokenEvent, TokenStream};
use pelton_parse::{Delta, Reader, ReaderOptions};
use pelton_text::{Detokenizer, Tokenizer};

use crate::beam::{BeamScore, Searches};
use crate::border::{DETOKENIZER, guard};
use crate::event::{CallPiece, Event, EventToken, Finish, Logprob, Milestones, Timings, TopToken};
use crate::stop::{StopMatcher, StopOutcome};

/// The answers to one request while they grow.
#[must_use = "dropping it aborts the request"]
pub struct Generating {
    tokenizer: Arc<Tokenizer>,
    /// End tokens of the model, whose text is never shown.
    eos: Vec<TokenId>,
    /// Control tokens whose text the readers must see.
    control: Vec<TokenId>,
    stop: Vec<String>,
    /// Tokens of an answer before a stop string may end it.
    min_tokens: usize,
    choices: Vec<Choice>,
    /// Beam searches, whose answers come whole; else each choice has a stream.
    searches: Searches,
    /// Choice that is asked first next time, so that no choice waits for all others.
    next_idx: usize,
    submitted: Instant,
    at: Milestones,
    /// Each prompt counted once.
    prompt_tokens: usize,
    /// Answers to each prompt.
    per_prompt: usize,
}

/// The parts that a [`Generating`] is built from.
pub(crate) struct Start {
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) eos: Vec<TokenId>,
    pub(crate) stop: Vec<String>,
    pub(crate) min_tokens: usize,
    /// One stream per answer; none where beams are searched.
    pub(crate) streams: Vec<TokenStream>,
    pub(crate) searches: Searches,
    /// Tokens of each prompt.
    pub(crate) prompt_lens: Vec<usize>,
    pub(crate) submitted: Instant,
    /// Answers to each prompt, at least one; the answers to one prompt lie side by side.
    pub(crate) per_prompt: usize,
    /// How thoughts and calls are taken out of the text; `None` where the text is all.
    pub(crate) reader: Option<ReaderOptions>,
    /// Control tokens whose text the reader must see.
    pub(crate) control: Vec<TokenId>,
}

struct Choice {
    /// `None` once the answer has ended, and where beams are searched.
    stream: Option<TokenStream>,
    detokenizer: Detokenizer,
    stop: StopMatcher,
    usage: Usage,
    /// Takes thoughts and calls out of the text; `None` where the text is all.
    reader: Option<Reader>,
    n_calls: usize,
    malformed_call: bool,
}

impl Choice {
    /// The text of a token, held back while a character is incomplete; control tokens that the
    /// reader looks for are text, too.
    fn text_of(&mut self, id: TokenId, tokenizer: &Tokenizer, control: &[TokenId]) -> String {
        let mut piece = self.detokenizer.push(id);
        if control.contains(&id) {
            let name = tokenizer.token_bytes(id).unwrap_or_default();
            piece.push_str(&String::from_utf8_lossy(name));
        }
        piece
    }

    /// Adds text to an event, as what it is.
    fn read(&mut self, text: &str, event: &mut Event) {
        let Some(reader) = &mut self.reader else {
            event.text.push_str(text);
            return;
        };
        for delta in reader.push(text) {
            self.tell(delta, event);
        }
    }

    /// Adds what the reader held back.
    fn end(&mut self, event: &mut Event) {
        let Some(reader) = &mut self.reader else { return };
        let end = reader.finish();
        self.malformed_call |= end.malformed;
        for delta in end.deltas {
            self.tell(delta, event);
        }
    }

    fn tell(&mut self, delta: Delta, event: &mut Event) {
        match delta {
            Delta::Content(text) => event.text.push_str(&text),
            Delta::Reasoning(text) => event.thought.push_str(&text),
            Delta::Call { index, name } => {
                self.n_calls += 1;
                let (name, arguments) = (Some(name), String::new());
                event.calls.push(CallPiece { index, name, arguments });
            }
            Delta::Arguments { index, text } => match event.calls.last_mut() {
                Some(last) if last.index == index => last.arguments.push_str(&text),
                _ => event.calls.push(CallPiece { index, name: None, arguments: text }),
            },
        }
    }

    fn finish(
        &self,
        reason: FinishReason,
        stop: Option<String>,
        fault: Option<Fault>,
        beam: Option<BeamScore>,
    ) -> Finish {
        let Self { usage, n_calls, malformed_call, .. } = *self;
        Finish { reason, stop, fault, beam, n_calls, malformed_call, usage }
    }
}

impl Choice {
    /// Finds stop strings that end in the text of the token that was counted last.
    fn watch(&mut self, piece: &str, min_tokens: usize) -> StopOutcome {
        if self.usage.completion_tokens > min_tokens {
            return self.stop.push(piece);
        }
        StopOutcome { text: self.stop.push_early(piece), matched: None }
    }
}

impl Generating {
    pub(crate) fn new(start: Start) -> Self {
        let n_choices = start.prompt_lens.len() * start.per_prompt;
        let mut streams = start.streams.into_iter();
        let choices = (0..n_choices)
            .map(|idx| start.prompt_lens[idx / start.per_prompt])
            .map(|prompt_tokens| Choice {
                stream: streams.next(),
                detokenizer: Detokenizer::continuing(&start.tokenizer, true),
                stop: StopMatcher::new(&start.stop),
                usage: Usage { prompt_tokens, ..Usage::default() },
                reader: start.reader.as_ref().map(|options| Reader::new(options.clone())),
                n_calls: 0,
                malformed_call: false,
            })
            .collect();
        Self {
            tokenizer: start.tokenizer,
            eos: start.eos,
            control: start.control,
            stop: start.stop,
            min_tokens: start.min_tokens,
            choices,
            searches: start.searches,
            next_idx: 0,
            submitted: start.submitted,
            at: Milestones::default(),
            prompt_tokens: start.prompt_lens.iter().sum(),
            per_prompt: start.per_prompt,
        }
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
            let Some(stream) = &mut self.choices[idx].stream else { continue };
            is_any_open = true;
            // The future of a receive holds no token, so a new one each time loses none.
            let Poll::Ready(received) = pin!(stream.recv()).poll(cx) else { continue };
            self.next_idx = idx + 1;
            return Poll::Ready(Some(self.accept_guarded(idx, received)));
        }
        if is_any_open { Poll::Pending } else { Poll::Ready(None) }
    }

    /// Number of answers.
    pub fn n_choices(&self) -> usize {
        self.choices.len()
    }

    /// Tokens of all prompts, each counted once, and of all answers so far.
    ///
    /// Cached tokens are counted for the first answer to each prompt only: further answers share
    /// its prompt and would count them again.
    pub fn usage(&self) -> Usage {
        let firsts = self.choices.iter().step_by(self.per_prompt);
        Usage {
            prompt_tokens: self.prompt_tokens,
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
        (n_computed.sum(), self.prompt_tokens)
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
            let finish = choice.finish(FinishReason::Error, None, Some(panicked.into()), None);
            Event { finish: Some(finish), ..Event::new(idx) }
        })
    }

    /// Turns an event of the engine for one answer into the event for the caller.
    fn accept(&mut self, idx: usize, received: Option<TokenEvent>) -> Event {
        let choice = &mut self.choices[idx];
        let mut event = Event::new(idx);
        let (mut stopped_by, mut fault, mut beam) = (None, None, None);
        // A stream ends without a reason when the engine has ended.
        let mut ended = Some(FinishReason::Aborted);
        if let Some(received) = received {
            let since = |at: Instant| at.saturating_duration_since(self.submitted);
            let started = received.started_at.map(since);
            self.at.started = [self.at.started, started].into_iter().flatten().min();
            if !received.tokens.is_empty() {
                let at = since(received.at);
                self.at.first_token.get_or_insert(at);
                self.at.last_token = Some(at);
            }
            (ended, fault) = (received.finish, received.fault);
            beam = received.beams.first().map(|beam| BeamScore {
                cumulative_logprob: beam.cumulative_logprob,
                score: beam.score,
            });
            let is_stop = ended == Some(FinishReason::Stop);
            // Tokens are counted here, because a stop string may end the answer within a step.
            let Usage { completion_tokens, reasoning_tokens, .. } = choice.usage;
            choice.usage = Usage { completion_tokens, reasoning_tokens, ..received.usage };
            let n_tokens = received.tokens.len();
            for (i, sampled) in received.tokens.into_iter().enumerate() {
                let id = sampled.token;
                let is_end = is_stop && i + 1 == n_tokens && self.eos.contains(&id);
                choice.usage.completion_tokens += 1;
                event.tokens.push(describe(&self.tokenizer, sampled, is_end));
                if is_end {
                    continue;
                }
                let piece = choice.text_of(id, &self.tokenizer, &self.control);
                let outcome = choice.watch(&piece, self.min_tokens);
                choice.read(&outcome.text, &mut event);
                let thinks = choice.reader.as_ref().is_some_and(|reader| !reader.is_past_thought());
                choice.usage.reasoning_tokens += usize::from(thinks);
                if outcome.matched.is_some() {
                    stopped_by = outcome.matched;
                    break;
                }
            }
        }
        if stopped_by.is_none() && ended.is_some() {
            let piece = choice.detokenizer.flush();
            let outcome = choice.watch(&piece, self.min_tokens);
            choice.read(&outcome.text, &mut event);
            stopped_by = outcome.matched;
            if stopped_by.is_none() {
                let rest = choice.stop.finish();
                choice.read(&rest, &mut event);
            }
        }
        let reason = if stopped_by.is_some() { Some(FinishReason::Stop) } else { ended };
        if let Some(reason) = reason {
            // Dropping the stream tells the engine that a stop string ended the answer.
            choice.stream = None;
            let stop = stopped_by.map(|idx| self.stop[idx].clone());
            choice.end(&mut event);
            event.finish = Some(choice.finish(reason, stop, fault, beam));
        }
        event
    }
}

fn describe(tokenizer: &Tokenizer, sampled: SampledToken, is_end: bool) -> EventToken {
    let bytes = |id| tokenizer.token_bytes(id).unwrap_or_default().to_vec();
    let logprob = sampled.logprobs.map(|l| Logprob {
        logprob: l.logprob,
        top: l
            .top
            .into_iter()
            .map(|(id, logprob)| TopToken { id, bytes: bytes(id), logprob })
            .collect(),
    });
    EventToken {
        id: sampled.token,
        bytes: bytes(sampled.token),
        is_special: is_end || tokenizer.is_special(sampled.token),
        logprob,
    }
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

/// Waits for a future on this thread, parked while it is pending.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        std::thread::park();
    }
}
