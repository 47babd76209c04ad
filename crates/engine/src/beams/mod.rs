//! Beam search: the answers with the best scores instead of one that is drawn.
//!
//! # The chapter
//!
//! ```text
//! scheduler   led requests, one per live beam ([`Scheduler::branch`](pelton_sched::Scheduler::branch))
//! probe       a logits processor of each, which notes its candidates and changes nothing
//! groups      when every beam of a search has candidates: search, then extend, branch and drop beams
//! search      candidates in, next beams out
//! ```
//!
//! A step of a search is a row for each live beam, in the batch of all other requests. The beams share
//! the KV of their common tokens: full blocks as they are, the block at the end as a copy. A beam that
//! was computed rests until the others of its search are, so nothing depends on which step, which chunk
//! or which batch a beam was computed in.
//!
//! **Definition.** The candidates of a beam are its `2 * width` likeliest tokens, by the model's own
//! log probabilities. A candidate that stops the answer is done. Of all others, of all beams, the
//! `width` with the largest sums are the next beams; the lower token goes first among equals, then the
//! lower beam. Beams of `max_tokens` tokens are done too. The answers are those done that have the best
//! scores:
//!
//! ```text
//! score = sum of log probabilities / (tokens of prompt and answer, without the stop token) ^ length_penalty
//! ```
//!
//! This is what vLLM does (`vllm/beam_search.py`), prompt included. Where vLLM goes on to `max_tokens`,
//! [`EarlyStopping::Never`] ends as soon as no live beam can reach one of the answers, with the same
//! outcome; the two other modes are those of `transformers`.
//!
//! Paper: Sutskever et al., "Sequence to Sequence Learning with Neural Networks", NeurIPS 2014; Wu et
//! al., 2016 (length penalty).

mod groups;
mod probe;
mod search;
mod stream;

use pelton_base::{FinishReason, ParamError, SamplingParams, TokenId, limits};
use pelton_sampling::TokenLogprobs;

pub(crate) use groups::{Group, Groups, Moves};
pub use stream::{BeamEvent, BeamStream};

/// When a search ends that has `width` answers.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum EarlyStopping {
    /// When no live beam can reach a better score than the worst answer: the outcome is that of a
    /// search that goes on to the end. `"never"` of `transformers`, and what vLLM computes.
    #[default]
    Never,
    /// When the best live beam, as if it ended here, is no better than the worst answer. `false` of
    /// `transformers`.
    Heuristic,
    /// At once. `true` of `transformers`.
    Always,
}

/// Parameters of a beam search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BeamParams {
    /// Beams; from 1 to [`limits::BEAMS`].
    pub width: usize,
    /// Best answers to return; from 1 to `width`.
    pub n: usize,
    /// Exponent of the length by which the sum of log probabilities is divided: above 0 favours long
    /// answers, 0 is off; from -10 to 10.
    pub length_penalty: f64,
    /// When a search ends that has `width` answers.
    pub early_stopping: EarlyStopping,
}

impl BeamParams {
    /// A search for the `width` best answers, as vLLM has it.
    pub fn of_width(width: usize) -> Self {
        let early_stopping = EarlyStopping::default();
        Self { width, n: width, length_penalty: 1.0, early_stopping }
    }

    /// Checks every range.
    ///
    /// # Errors
    ///
    /// Names the first field out of its range.
    pub fn validate(&self) -> Result<(), ParamError> {
        let fail = |param, expected: &'static str, got: &dyn std::fmt::Display| {
            Err(ParamError { param, expected, got: got.to_string() })
        };
        if !(1..=limits::BEAMS).contains(&self.width) {
            return fail("beam_width", "from 1 to 32", &self.width);
        }
        if !(1..=self.width).contains(&self.n) {
            return fail("n", "from 1 to the width of the beam search", &self.n);
        }
        if !(-10.0..=10.0).contains(&self.length_penalty) {
            return fail("length_penalty", "from -10 to 10", &self.length_penalty);
        }
        Ok(())
    }
}

/// An answer of a beam search.
#[derive(Clone, Debug, PartialEq)]
pub struct Beam {
    /// Its tokens, the stop token included.
    pub tokens: Vec<TokenId>,
    /// The log probability of each, and as many of the likeliest tokens there as were asked for.
    pub logprobs: Vec<TokenLogprobs>,
    /// Sum of the log probabilities.
    pub cumulative_logprob: f64,
    /// The sum divided by the length to the power of the length penalty; answers are ranked by it.
    pub score: f64,
    /// The reason for which it ended: [`FinishReason::Stop`] or [`FinishReason::Length`].
    pub finish: FinishReason,
}

/// Refuses sampling parameters that mean nothing to a beam search, or that it does not apply.
///
/// Temperatures 0 and 1 ask for nothing, because both leave the model's own probabilities. Seeds are
/// ignored: a search draws nothing. `min_tokens` and `allowed_tokens` are honoured.
///
/// # Errors
///
/// Names the first parameter that asks for something.
pub fn check_sampling(sampling: &SamplingParams) -> Result<(), ParamError> {
    const NEUTRAL: &str = "absent with a beam search, which ranks by the model's own probabilities";
    let plain = SamplingParams::default();
    let fail = |param, expected, got: String| Err(ParamError { param, expected, got });
    if sampling.temperature != 0.0 && sampling.temperature != 1.0 {
        let got = sampling.temperature.to_string();
        return fail("temperature", "0, 1 or absent with a beam search", got);
    }
    for (param, is_neutral, got) in [
        ("top_k", sampling.top_k == 0, sampling.top_k.to_string()),
        ("top_p", sampling.top_p == 1.0, sampling.top_p.to_string()),
        ("min_p", sampling.min_p == 0.0, sampling.min_p.to_string()),
        ("typical_p", sampling.typical_p == 1.0, sampling.typical_p.to_string()),
        ("top_n_sigma", sampling.top_n_sigma == 0.0, sampling.top_n_sigma.to_string()),
        ("xtc_probability", sampling.xtc.probability == 0.0, sampling.xtc.probability.to_string()),
        ("dynatemp_range", sampling.dynatemp.range == 0.0, sampling.dynatemp.range.to_string()),
        ("mirostat", sampling.mirostat.is_none(), "a version".to_owned()),
        ("samplers", sampling.samplers.is_none(), "an order".to_owned()),
        ("dry_multiplier", sampling.dry.multiplier == 0.0, sampling.dry.multiplier.to_string()),
        ("bad_words", sampling.bad_words.is_empty(), "texts".to_owned()),
        ("logit_bias", sampling.logit_bias.is_empty(), "a bias".to_owned()),
        (
            "repetition_penalty",
            sampling.repetition_penalty == plain.repetition_penalty,
            sampling.repetition_penalty.to_string(),
        ),
        (
            "presence_penalty",
            sampling.presence_penalty == plain.presence_penalty,
            sampling.presence_penalty.to_string(),
        ),
        (
            "frequency_penalty",
            sampling.frequency_penalty == plain.frequency_penalty,
            sampling.frequency_penalty.to_string(),
        ),
    ] {
        if !is_neutral {
            return fail(param, NEUTRAL, got);
        }
    }
    Ok(())
}
