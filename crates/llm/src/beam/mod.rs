//! Beam search: the best answers to a prompt, whole, with their scores.
//!
//! ```text
//! Generation::beams ──▶ one search of the engine for each prompt ──▶ n answers, the best first
//! ```
//!
//! The definition stands in [`pelton_engine::beams`]. A request with beams is answered by a
//! [`Generating`] like any other, whose only event for each answer has all of it;
//! [`Llm::beam_search`] gathers these events.

mod searches;

use std::task::{Context, Poll};

use pelton_base::{FinishReason, ParamError, Usage};
use pelton_engine::LogprobsMode;
use pelton_engine::beams::check_sampling;

use crate::error::LlmError;
use crate::event::{EventToken, Finish, Timings};
use crate::generating::Generating;
use crate::llm::Llm;
use crate::processors::Processors;
use crate::request::{CompletionRequest, Generation, Prompt};
use crate::speculation::Speculation;

pub use pelton_engine::{BeamParams, EarlyStopping};
pub(crate) use searches::Searches;

/// Texts to continue by the best answers to each.
#[derive(Clone, Debug)]
pub struct BeamRequest {
    /// The texts; each is searched separately.
    pub prompts: Vec<Prompt>,
    /// The search; its `n` best answers to each text are returned.
    pub params: BeamParams,
    /// Limits and ends of the answers; its `n` and `beams` do not matter. Start from
    /// [`Generation::default`]: a model's recommended sampling is refused, see
    /// [`check_sampling`](pelton_engine::beams::check_sampling).
    pub generation: Generation,
}

/// The place of an answer among others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BeamScore {
    /// Sum of the log probabilities of its tokens, that of the stop token included.
    pub cumulative_logprob: f64,
    /// The sum divided by the length to the power of the length penalty; answers are ranked by it.
    pub score: f64,
}

/// An answer of a beam search.
#[derive(Clone, Debug, PartialEq)]
pub struct BeamAnswer {
    /// Its text, without that of the model's end token.
    pub text: String,
    /// Its tokens, the stop token included, with log probabilities where the request asks for them.
    pub tokens: Vec<EventToken>,
    /// Its place among other answers.
    pub score: BeamScore,
    /// The reason for which it ended.
    pub finish: Finish,
}

/// Beam searches under way. Dropping it aborts them within one step of the engine.
#[derive(Debug)]
#[must_use = "dropping it aborts the search"]
pub struct BeamSearch {
    generating: Generating,
    /// Answers to each prompt.
    n: usize,
    /// Answers of each prompt, as far as they are found.
    found: Vec<Vec<BeamAnswer>>,
}

impl Llm {
    /// Searches the best answers to each prompt.
    ///
    /// # Errors
    ///
    /// As [`complete`](Self::complete); and where the request asks for something that a beam search
    /// does not do.
    pub fn beam_search(&self, request: BeamRequest) -> Result<BeamSearch, LlmError> {
        let BeamRequest { prompts, params, generation } = request;
        let n = u32::try_from(params.n).unwrap_or(u32::MAX);
        let generation = Generation { n, beams: Some(params), ..generation };
        let found = prompts.iter().map(|_| Vec::new()).collect();
        let generating = self.complete(CompletionRequest { prompts, generation })?;
        Ok(BeamSearch { generating, n: params.n, found })
    }
}

impl BeamSearch {
    /// Waits for all searches: the answers to each prompt, the best first. Safe to cancel.
    ///
    /// # Errors
    ///
    /// The first answer that failed, as its end tells.
    pub async fn finish(&mut self) -> Result<Vec<Vec<BeamAnswer>>, Box<Finish>> {
        std::future::poll_fn(|cx| self.poll_finish(cx)).await
    }

    /// As [`finish`](Self::finish), for callers outside an async runtime.
    ///
    /// # Errors
    ///
    /// As [`finish`](Self::finish).
    pub fn blocking_finish(&mut self) -> Result<Vec<Vec<BeamAnswer>>, Box<Finish>> {
        crate::generating::block_on(self.finish())
    }

    /// As [`finish`](Self::finish), for callers with an executor of their own.
    pub fn poll_finish(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Vec<Vec<BeamAnswer>>, Box<Finish>>> {
        loop {
            let event = match self.generating.poll_next(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(Ok(std::mem::take(&mut self.found))),
                Poll::Ready(Some(event)) => event,
            };
            let Some(finish) = event.finish else { continue };
            let failed = matches!(finish.reason, FinishReason::Error | FinishReason::Aborted);
            let Some(score) = finish.beam.filter(|_| !failed) else {
                return Poll::Ready(Err(Box::new(finish)));
            };
            let (text, tokens) = (event.text, event.tokens);
            let answer = BeamAnswer { text, tokens, score, finish };
            self.found[event.choice / self.n].push(answer);
        }
    }

    /// Tokens of all prompts that are computed or cached so far, and in all.
    pub fn prompt_progress(&self) -> (usize, usize) {
        self.generating.prompt_progress()
    }

    /// Tokens of the longest beam so far; at most `max_tokens`.
    pub fn n_tokens(&self) -> usize {
        self.generating.beam_tokens()
    }

    /// Tokens of all prompts, each counted once, and of all answers that are found.
    pub fn usage(&self) -> Usage {
        self.generating.usage()
    }

    /// Times of the search so far.
    pub fn timings(&self) -> Timings {
        self.generating.timings()
    }
}

/// Checks the search of a request, and refuses by name what does not combine with one.
pub(crate) fn validate(generation: &Generation, params: BeamParams) -> Result<(), ParamError> {
    BeamParams { n: generation.n as usize, ..params }.validate()?;
    check_sampling(&generation.sampling)?;
    // The scores of beams are sums of the model's own log probabilities.
    let is_raw = generation.logprobs_mode == LogprobsMode::Raw;
    for (param, is_absent) in [
        ("best_of", generation.best_of.is_none()),
        ("stop", generation.stop.is_empty()),
        ("seeds", generation.seeds.is_empty()),
        ("bad_words", generation.texts.bad_words.is_empty()),
        ("logit_bias", generation.texts.logit_bias.is_empty()),
        ("logit_bias", generation.texts.banned.is_empty()),
        ("prediction", generation.prediction.is_none()),
        ("prompt_logprobs", generation.prompt_logprobs.is_none()),
        ("logprobs", generation.sampling.logprobs.is_none() || is_raw),
        ("speculation", generation.speculation == Speculation::default()),
        ("logits_processors", generation.processors == Processors::default()),
    ] {
        if !is_absent {
            let (expected, got) = ("absent with a beam search", "a value".to_owned());
            return Err(ParamError { param, expected, got });
        }
    }
    Ok(())
}
