//! The beam searches behind the answers to a request, each with the answers to one prompt.

use std::collections::VecDeque;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Instant;

use pelton_base::{FinishReason, Usage};
use pelton_engine::{Beam, BeamEvent, BeamStream, Fault, SampledToken, TokenEvent};

/// Searches under way, and answers of those that have ended.
#[derive(Debug, Default)]
pub(crate) struct Searches {
    /// The first answer of each search, and its stream.
    open: Vec<(usize, BeamStream)>,
    /// Answers of each search.
    n: usize,
    with_logprobs: bool,
    /// Answers that were not taken yet, each as the one event of a stream.
    ready: VecDeque<(usize, TokenEvent)>,
    /// Tokens of the beams of each search, and the ends of the first and the last step.
    grown: Option<Grown>,
}

#[derive(Clone, Copy, Debug)]
struct Grown {
    first: Instant,
    n_tokens: usize,
}

impl Searches {
    /// Searches for `n` answers each.
    pub(crate) fn new(streams: Vec<BeamStream>, n: usize, with_logprobs: bool) -> Self {
        let open = streams.into_iter().enumerate().map(|(i, stream)| (i * n, stream)).collect();
        Self { open, n, with_logprobs, ..Self::default() }
    }

    /// The next answer, as the only event of it; `Ready(None)` when there are no more.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<(usize, TokenEvent)>> {
        let mut idx = 0;
        while self.ready.is_empty() && idx < self.open.len() {
            // The future of a receive holds no event, so a new one each time loses none.
            let received = pin!(self.open[idx].1.recv()).poll(cx);
            match received {
                Poll::Pending => idx += 1,
                Poll::Ready(Some(BeamEvent::Grown { n_tokens, at })) => {
                    let before = self.grown.unwrap_or(Grown { first: at, n_tokens: 0 });
                    self.grown = Some(Grown { n_tokens: before.n_tokens.max(n_tokens), ..before });
                }
                Poll::Ready(ended) => {
                    let (first, _) = self.open.remove(idx);
                    self.end(first, ended);
                }
            }
        }
        match self.ready.pop_front() {
            Some(answer) => Poll::Ready(Some(answer)),
            None if self.open.is_empty() => Poll::Ready(None),
            None => Poll::Pending,
        }
    }

    /// The end of the first step that brought a token.
    pub(crate) fn first_token_at(&self) -> Option<Instant> {
        self.grown.map(|grown| grown.first)
    }

    /// Tokens of the longest beam under way.
    pub(crate) fn n_tokens(&self) -> usize {
        self.grown.map_or(0, |grown| grown.n_tokens)
    }

    /// Tokens of a prompt that are computed while its beams have none, by the number of its first
    /// answer.
    pub(crate) fn n_computed(&self, first: usize) -> Option<usize> {
        let (_, stream) = self.open.iter().find(|(choice, _)| *choice == first)?;
        self.grown.is_none().then(|| stream.n_computed())
    }

    /// Turns the end of a search into the events of its answers.
    fn end(&mut self, first: usize, ended: Option<BeamEvent>) {
        let n = self.n;
        let (answers, failure, fault, usage, started_at, at) = match ended {
            Some(BeamEvent::Ended { answers, failure, fault, usage, started_at, at }) => {
                (answers, failure, fault, usage, started_at, at)
            }
            // A stream ends without an end when the engine has ended.
            _ => {
                let how = Some(FinishReason::Aborted);
                (Vec::new(), how, None, Usage::default(), None, Instant::now())
            }
        };
        let n_found = answers.len();
        let mut answers = answers.into_iter();
        for rank in 0..n {
            let mut event = TokenEvent {
                tokens: Vec::new(),
                finish: failure,
                fault: fault.clone(),
                usage,
                started_at,
                at,
                beams: Vec::new(),
                prompt: Vec::new(),
            };
            match answers.next().filter(|_| failure.is_none()) {
                Some(beam) => self.tell(beam, &mut event),
                None if failure.is_none() => {
                    let why = format!("{n_found} answers are possible, {n} are asked for");
                    event.finish = Some(FinishReason::Error);
                    event.fault = Some(Fault::Stuck(why));
                }
                None => {}
            }
            self.ready.push_back((first + rank, event));
        }
    }

    /// Puts an answer into its event, whose `beams` keep its score.
    fn tell(&self, mut beam: Beam, event: &mut TokenEvent) {
        let tokens = std::mem::take(&mut beam.tokens);
        let logprobs = std::mem::take(&mut beam.logprobs).into_iter().map(Some);
        let with_logprobs = self.with_logprobs;
        let told = tokens.into_iter().zip(logprobs).map(|(token, logprobs)| {
            let logprobs = logprobs.filter(|_| with_logprobs);
            SampledToken { token, logprobs }
        });
        event.tokens = told.collect();
        event.finish = Some(beam.finish);
        event.beams.push(beam);
    }
}
