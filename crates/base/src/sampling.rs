//! The choice of the next token, with the parameters of a request.

use crate::{TokenId, limits};

/// Everything that shapes the choice of the next token.
///
/// The canonical order in which they apply: logit bias, repetition, presence and frequency
/// penalties, the mask of `min_tokens`, temperature, top-k, top-p, min-p. `temperature == 0` means
/// greedy: the largest logit after bias, penalties and mask, the lowest id of equal logits.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; zero means greedy.
    pub temperature: f32,
    /// Keeps the `top_k` most likely tokens; zero keeps all.
    pub top_k: u32,
    /// Keeps the smallest set of most likely tokens whose probability reaches `top_p`; in `(0, 1]`.
    pub top_p: f32,
    /// Drops tokens less likely than `min_p` times the most likely one; in `[0, 1]`.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or output; 1 is
    /// off.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens seen in the output; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted once per occurrence in the output; 0 is off.
    pub frequency_penalty: f32,
    /// Added to the logits of single tokens.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Least tokens of an answer: until then stop tokens have no probability and no stop string
    /// ends the answer. At most the number of tokens that may be generated.
    pub min_tokens: usize,
    /// Seed of the counter-based generator; the same seed gives the same tokens.
    pub seed: u64,
    /// Whether, and with how many alternatives, log probabilities are reported.
    pub logprobs: Option<usize>,
}

impl Default for SamplingParams {
    /// Plain sampling from the model's own distribution.
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            min_tokens: 0,
            seed: 0,
            logprobs: None,
        }
    }
}

/// A sampling parameter outside its range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("`{param}` must be {expected}, got {got}")]
pub struct ParamError {
    /// The name of the field for clients.
    pub param: &'static str,
    /// Its permitted values.
    pub expected: &'static str,
    /// Its value.
    pub got: String,
}

impl SamplingParams {
    /// Greedy decoding.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Whether the most likely token is always taken.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// Checks every range.
    ///
    /// # Errors
    ///
    /// Names the first field that is out of range; NaN and infinities are out of every range.
    pub fn validate(&self) -> Result<(), ParamError> {
        let check = |ok: bool, param, expected, got: &dyn std::fmt::Display| {
            if ok { Ok(()) } else { Err(ParamError { param, expected, got: got.to_string() }) }
        };
        let within = |x: f32, low: f32, high: f32| (low..=high).contains(&x);
        check(
            within(self.temperature, 0.0, 100.0),
            "temperature",
            "from 0 to 100",
            &self.temperature,
        )?;
        check(
            self.top_p > 0.0 && self.top_p <= 1.0,
            "top_p",
            "above 0 and at most 1",
            &self.top_p,
        )?;
        check(within(self.min_p, 0.0, 1.0), "min_p", "from 0 to 1", &self.min_p)?;
        check(
            self.repetition_penalty > 0.0 && self.repetition_penalty <= 100.0,
            "repetition_penalty",
            "above 0 and at most 100",
            &self.repetition_penalty,
        )?;
        check(
            within(self.presence_penalty, -2.0, 2.0),
            "presence_penalty",
            "from -2 to 2",
            &self.presence_penalty,
        )?;
        check(
            within(self.frequency_penalty, -2.0, 2.0),
            "frequency_penalty",
            "from -2 to 2",
            &self.frequency_penalty,
        )?;
        check(
            self.logit_bias.len() <= limits::LOGIT_BIAS_ENTRIES,
            "logit_bias",
            "at most 1024 entries",
            &self.logit_bias.len(),
        )?;
        if let Some((_, bias)) = self.logit_bias.iter().find(|(_, b)| !within(*b, -100.0, 100.0)) {
            check(false, "logit_bias", "values from -100 to 100", bias)?;
        }
        let n_logprobs = self.logprobs.unwrap_or(0);
        check(n_logprobs <= limits::TOP_LOGPROBS, "top_logprobs", "at most 20", &n_logprobs)
    }

    /// Checks that `min_tokens` is at most `max_tokens`.
    ///
    /// # Errors
    ///
    /// Names `min_tokens`.
    pub fn validate_length(&self, max_tokens: usize) -> Result<(), ParamError> {
        if self.min_tokens <= max_tokens {
            return Ok(());
        }
        let got = format!("{} where that is {max_tokens}", self.min_tokens);
        Err(ParamError { param: "min_tokens", expected: "at most `max_tokens`", got })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_and_out_of_range_values_are_refused_by_name() {
        let cases: [(&str, SamplingParams); 5] = [
            ("temperature", SamplingParams { temperature: f32::NAN, ..Default::default() }),
            ("temperature", SamplingParams { temperature: -0.1, ..Default::default() }),
            ("top_p", SamplingParams { top_p: 0.0, ..Default::default() }),
            ("min_p", SamplingParams { min_p: 1.5, ..Default::default() }),
            (
                "logit_bias",
                SamplingParams {
                    logit_bias: vec![(TokenId(1), f32::INFINITY)],
                    ..Default::default()
                },
            ),
        ];
        for (param, params) in cases {
            assert_eq!(params.validate().expect_err(param).param, param);
        }
        assert_eq!(SamplingParams::greedy().validate(), Ok(()));
    }

    #[test]
    fn an_answer_cannot_have_to_be_longer_than_it_may() {
        let params = SamplingParams { min_tokens: 8, ..Default::default() };
        assert_eq!((params.validate_length(9), params.validate_length(8)), (Ok(()), Ok(())));
        let error = params.validate_length(7).expect_err("too short");
        assert_eq!(error.param, "min_tokens");
        assert!(error.to_string().contains("got 8 where that is 7"), "{error}");
    }
}
