//! The choice of the next token, with the parameters of a request.

use crate::{TokenId, limits};
use std::sync::Arc;

/// Everything that shapes the choice of the next token.
///
/// The canonical order in which they apply: logit bias, repetition, presence and frequency
/// penalties, DRY, the masks (`suppressed`, `allowed_tokens`, `bad_words`, `min_tokens`, the rule of
/// the request), temperature (dynamic or not), top-n-sigma, top-k, typical-p, top-p, min-p, XTC; or Mirostat in
/// place of all that follow the temperature. [`samplers`](Self::samplers) changes the order of the
/// last part. `temperature == 0` means greedy: the largest logit after bias, penalties and masks,
/// the lowest id of equal logits.
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
    /// Keeps the tokens whose information content is closest to the expected one, until their
    /// probability reaches it; in `(0, 1]`, 1 is off. Meister et al., "Locally Typical Sampling",
    /// TACL 2023.
    pub typical_p: f32,
    /// Keeps logits within this many standard deviations of the largest; 0 is off. Tang et al.,
    /// "Top-n-sigma: Not All Logits Are You Need", 2024.
    pub top_n_sigma: f32,
    /// Drops likely tokens at random.
    pub xtc: Xtc,
    /// Temperature by entropy.
    pub dynatemp: Dynatemp,
    /// Sampling at a constant surprise; `None` is off.
    pub mirostat: Option<Mirostat>,
    /// Least tokens that each truncation leaves; 0 and 1 are the same.
    pub min_keep: usize,
    /// Order of the truncations and the temperature; `None` for the canonical order. A stage that is
    /// not in it does not apply.
    pub samplers: Option<Vec<SamplerStage>>,
    /// Penalty of repetitions by their length.
    pub dry: Dry,
    /// The only tokens that may be sampled; `None` for all.
    pub allowed_tokens: Option<Vec<TokenId>>,
    /// Tokens that the authors of the model forbid.
    pub suppressed: SuppressedTokens,
    /// Sequences of tokens that must not occur in the answer.
    pub bad_words: Vec<Vec<TokenId>>,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or output; 1 is
    /// off.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens seen in the output; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted once per occurrence in the output; 0 is off.
    pub frequency_penalty: f32,
    /// Latest tokens, of prompt and output together, in which the repetition, presence and
    /// frequency penalties count; `None` for all.
    pub repeat_last_n: Option<usize>,
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
            typical_p: 1.0,
            top_n_sigma: 0.0,
            xtc: Xtc::default(),
            dynatemp: Dynatemp::default(),
            mirostat: None,
            min_keep: 0,
            samplers: None,
            dry: Dry::default(),
            allowed_tokens: None,
            suppressed: SuppressedTokens::default(),
            bad_words: Vec::new(),
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repeat_last_n: None,
            logit_bias: Vec::new(),
            min_tokens: 0,
            seed: 0,
            logprobs: None,
        }
    }
}

/// Tokens that a model never samples, whatever a request says; ids beyond the vocabulary are ignored.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SuppressedTokens {
    /// Everywhere in an answer.
    pub always: Arc<[TokenId]>,
    /// In place of the first token of an answer.
    pub first: Arc<[TokenId]>,
}

impl SuppressedTokens {
    /// Whether every token may be sampled.
    pub fn is_empty(&self) -> bool {
        self.always.is_empty() && self.first.is_empty()
    }

    /// The tokens that are forbidden after `n_generated` tokens of an answer.
    pub fn at(&self, n_generated: usize) -> impl Iterator<Item = TokenId> {
        let first = if n_generated == 0 { &self.first[..] } else { &[] };
        self.always.iter().chain(first).copied()
    }
}

/// Exclude top choices: with some probability, all tokens above a threshold but the least likely of
/// them are dropped (p-e-w, 2024, text-generation-webui #6335).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Xtc {
    /// Probability that it applies to a token; 0 is off.
    pub probability: f32,
    /// Least probability of a top choice; above 0.5 there is never more than one, so it is off.
    pub threshold: f32,
}

impl Default for Xtc {
    fn default() -> Self {
        Self { probability: 0.0, threshold: 0.1 }
    }
}

/// Dynamic temperature (kalomaze, 2023): the temperature grows with the entropy of the distribution,
/// from `temperature - range` to `temperature + range`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dynatemp {
    /// Half the width of the range; 0 is off.
    pub range: f32,
    /// Exponent of the normalized entropy.
    pub exponent: f32,
}

impl Default for Dynatemp {
    fn default() -> Self {
        Self { range: 0.0, exponent: 1.0 }
    }
}

/// Sampling at a constant surprise: Basu et al., "Mirostat", ICLR 2021.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mirostat {
    /// 1 estimates how many tokens to keep, 2 cuts by surprise.
    pub version: u8,
    /// The surprise that is aimed at, in bits.
    pub tau: f32,
    /// How fast the cut follows the surprise that was observed.
    pub eta: f32,
}

/// "Don't repeat yourself" (p-e-w, 2024, text-generation-webui #5677): a token that would continue
/// a repetition of `n` tokens loses `multiplier * base ^ (n - allowed_length)` of its logit.
#[derive(Clone, Debug, PartialEq)]
pub struct Dry {
    /// Scale of the penalty; 0 is off.
    pub multiplier: f32,
    /// Growth of the penalty by each token.
    pub base: f32,
    /// Longest repetition without a penalty.
    pub allowed_length: usize,
    /// Latest tokens, of prompt and output, in which repetitions are looked for; `None` for all.
    pub last_n: Option<usize>,
    /// Sequences of tokens that no repetition reaches across.
    pub breakers: Arc<[Vec<TokenId>]>,
}

impl Default for Dry {
    fn default() -> Self {
        Self {
            multiplier: 0.0,
            base: 1.75,
            allowed_length: 2,
            last_n: None,
            breakers: Arc::default(),
        }
    }
}

/// A step of the choice whose place in the order can be chosen, under llama.cpp's name.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum SamplerStage {
    /// Temperature, dynamic or not.
    Temperature,
    /// Top-n-sigma.
    TopNSigma,
    /// Top-k.
    TopK,
    /// Typical-p.
    TypicalP,
    /// Top-p.
    TopP,
    /// Min-p.
    MinP,
    /// Exclude top choices.
    Xtc,
}

impl SamplerStage {
    /// All of them, in the canonical order.
    pub const ALL: [Self; 7] = [
        Self::Temperature,
        Self::TopNSigma,
        Self::TopK,
        Self::TypicalP,
        Self::TopP,
        Self::MinP,
        Self::Xtc,
    ];

    /// Its name in requests and flags.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Temperature => "temperature",
            Self::TopNSigma => "top_n_sigma",
            Self::TopK => "top_k",
            Self::TypicalP => "typ_p",
            Self::TopP => "top_p",
            Self::MinP => "min_p",
            Self::Xtc => "xtc",
        }
    }
}

/// Fails where its first argument is `false`; the other arguments are those of [`ParamError`].
type Check<'a> =
    dyn Fn(bool, &'static str, &'static str, &dyn std::fmt::Display) -> Result<(), ParamError> + 'a;

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
            self.typical_p > 0.0 && self.typical_p <= 1.0,
            "typical_p",
            "above 0 and at most 1",
            &self.typical_p,
        )?;
        check(
            within(self.top_n_sigma, 0.0, 100.0),
            "top_n_sigma",
            "from 0 to 100",
            &self.top_n_sigma,
        )?;
        self.validate_rare(&check)?;
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

    /// Checks what few requests have.
    fn validate_rare(&self, check: &Check<'_>) -> Result<(), ParamError> {
        let within = |x: f32, low: f32, high: f32| (low..=high).contains(&x);
        let Self { xtc, dynatemp, dry, .. } = self;
        check(
            within(xtc.probability, 0.0, 1.0),
            "xtc_probability",
            "from 0 to 1",
            &xtc.probability,
        )?;
        check(within(xtc.threshold, 0.0, 1.0), "xtc_threshold", "from 0 to 1", &xtc.threshold)?;
        check(
            within(dynatemp.range, 0.0, 100.0),
            "dynatemp_range",
            "from 0 to 100",
            &dynatemp.range,
        )?;
        let exponent = dynatemp.exponent;
        check(within(exponent, 0.0, 100.0), "dynatemp_exponent", "from 0 to 100", &exponent)?;
        if let Some(mirostat) = self.mirostat {
            let version = mirostat.version;
            check((1..=2).contains(&version), "mirostat", "0, 1 or 2", &version)?;
            let tau = mirostat.tau;
            check(tau > 0.0 && tau <= 100.0, "mirostat_tau", "above 0 and at most 100", &tau)?;
            check(within(mirostat.eta, 0.0, 1.0), "mirostat_eta", "from 0 to 1", &mirostat.eta)?;
        }
        if let Some(samplers) = &self.samplers {
            let n = samplers.len();
            check(n <= limits::SAMPLER_STAGES, "samplers", "at most 16 names", &n)?;
            let twice = (1..n).find(|&at| samplers[..at].contains(&samplers[at]));
            if let Some(at) = twice {
                let got = format!("`{}` twice", samplers[at].name());
                check(false, "samplers", "different names", &got)?;
            }
        }
        check(
            within(dry.multiplier, 0.0, 100.0),
            "dry_multiplier",
            "from 0 to 100",
            &dry.multiplier,
        )?;
        check(within(dry.base, 1.0, 100.0), "dry_base", "from 1 to 100", &dry.base)?;
        let n = dry.allowed_length;
        check(n <= limits::DRY_TOKENS, "dry_allowed_length", "at most 1024", &n)?;
        let n = dry.breakers.len();
        check(n <= limits::DRY_BREAKERS, "dry_sequence_breakers", "at most 65536 tokens", &n)?;
        let n = self.bad_words.len();
        check(n <= limits::BAD_WORDS, "bad_words", "at most 1024 texts", &n)?;
        if self.bad_words.iter().any(Vec::is_empty) {
            check(false, "bad_words", "texts that are not empty", &"an empty text")?;
        }
        if let Some(allowed) = &self.allowed_tokens {
            let n = allowed.len();
            let is_in_range = (1..=limits::ALLOWED_TOKENS).contains(&n);
            check(is_in_range, "allowed_token_ids", "from 1 to 65536 tokens", &n)?;
        }
        Ok(())
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
