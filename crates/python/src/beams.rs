//! Beam searches for Python: parameters in, answers with their scores out.

use std::sync::{Arc, Mutex};

use pelton_base::SamplingParams;
use pelton_llm::{BeamParams, EarlyStopping, Generation, Llm};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::ask::{Job, Text};
use crate::crowd::Answer;
use crate::errors;
use crate::stream::{Logprobs, described};

/// The attributes of a `pelton.BeamSearchParams`.
#[derive(FromPyObject)]
pub(crate) struct BeamSearchParams {
    beam_width: usize,
    max_tokens: Option<usize>,
    ignore_eos: bool,
    temperature: f32,
    length_penalty: f64,
    /// `"never"`, `"heuristic"` or `"always"`.
    early_stopping: String,
    logprobs: Option<usize>,
}

/// An answer: its tokens, their log probabilities and texts, the reason of its end, the sum of the log
/// probabilities, and the score.
pub(crate) type Found =
    (Vec<u32>, Option<Vec<Logprobs>>, Vec<String>, Option<&'static str>, f64, f64);

impl BeamSearchParams {
    /// A search for the best answers to a prompt.
    ///
    /// # Errors
    ///
    /// When `early_stopping` has none of its values.
    pub(crate) fn job(&self, llm: &Llm, prompt: Text) -> PyResult<Job> {
        let early_stopping = match self.early_stopping.as_str() {
            "never" => EarlyStopping::Never,
            "heuristic" => EarlyStopping::Heuristic,
            "always" => EarlyStopping::Always,
            other => {
                let words = "`early_stopping` must be True, False or \"never\", got ";
                return Err(PyValueError::new_err(format!("{words}{other:?}")));
            }
        };
        let params = BeamParams {
            length_penalty: self.length_penalty,
            early_stopping,
            ..BeamParams::of_width(self.beam_width)
        };
        let sampling = SamplingParams {
            temperature: self.temperature,
            logprobs: self.logprobs,
            ..SamplingParams::greedy()
        };
        let generation = Generation {
            sampling,
            max_tokens: self.max_tokens,
            ignore_eos: self.ignore_eos,
            n: u32::try_from(self.beam_width).unwrap_or(u32::MAX),
            beams: Some(params),
            ..llm.default_generation()
        };
        Ok(Job::of(prompt, generation, Arc::new(Mutex::new(None))))
    }
}

/// A whole answer for Python.
pub(crate) fn found(answer: Answer) -> Found {
    let (tokens, logprobs, texts) = described(&answer.tokens);
    let reason = answer.finish.as_ref().map(|finish| errors::reason(finish.reason));
    let beam = answer.finish.and_then(|finish| finish.beam);
    let (sum, score) = beam.map_or((0.0, 0.0), |beam| (beam.cumulative_logprob, beam.score));
    (tokens, logprobs, texts, reason, sum, score)
}
