//! Requests for answers.

use pelton_base::{ParamError, SamplingParams, Shape, TokenId, limits};
use pelton_engine::spec::Verification;
use pelton_engine::{LogprobsMode, SpecMethod};
use pelton_text::Message;

use crate::beam::{self, BeamParams};
use crate::chat::ChatOptions;
use crate::processors::Processors;
use crate::service::Service;
use crate::speculation::Speculation;
use crate::texts::SamplingTexts;

/// How an answer is generated, apart from the prompt.
///
/// Start from [`Llm::default_generation`](crate::Llm::default_generation), which holds the
/// recommended sampling, and change the fields that the user changed.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Parts of the sampling that are texts.
    pub texts: SamplingTexts,
    /// Seeds of the answers to each prompt, one for each; an answer is then that of a request of
    /// its own with this seed. Empty for the seed of [`sampling`](Self::sampling).
    pub seeds: Vec<u64>,
    /// Most tokens of each answer; `None` for as many as the context holds. None at all (`Some(0)`)
    /// only where the prompt is scored.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer and are not part of it. A match that ends within the first
    /// [`min_tokens`](SamplingParams::min_tokens) tokens is ordinary text.
    pub stop: Vec<String>,
    /// Further tokens that end the answer; their text, if they have any, is part of it.
    pub stop_tokens: Vec<TokenId>,
    /// Whether to go on after the model's own end tokens.
    pub ignore_eos: bool,
    /// Whether the text that ends the answer, of a stop string or of an end token, is part of it; that
    /// of an end token only where control tokens have text.
    pub include_stop: bool,
    /// Whether control tokens have text in the answer: their names.
    pub keep_special: bool,
    /// Whether the tokens of the prompt are scored, and with how many of the likeliest tokens in
    /// each place, see [`Event::prompt`](crate::Event::prompt). Nothing of such a prompt comes from the
    /// prefix cache.
    pub prompt_logprobs: Option<usize>,
    /// The distribution whose log probabilities are reported for tokens of answers; those of a prompt
    /// are always the model's own.
    pub logprobs_mode: LogprobsMode,
    /// How the prompt becomes tokens.
    pub input: InputOptions,
    /// Answers per prompt; each has its own random numbers.
    pub n: u32,
    /// Answers generated per prompt, of which [`BestOf`](crate::BestOf) keeps `n`; `None` for `n`.
    /// Tokens of such answers always carry log probabilities.
    pub best_of: Option<u32>,
    /// Answers by beam search, of which [`n`](Self::n) are given; `None` for answers that are drawn.
    pub beams: Option<BeamParams>,
    /// Tenant, urgency and latency targets, for the scheduler.
    pub service: Service,
    /// How tokens of the answers are drafted.
    pub speculation: Speculation,
    /// Text that the answers are likely to repeat, such as the file that is being edited. The
    /// engine drafts from it ([`SpecMethod::Suffix`](crate::SpecMethod::Suffix) or `Auto`); it
    /// changes no token of any answer.
    pub prediction: Option<String>,
    /// The form that each answer has; `None` for free text. Tokens that the form forbids have no
    /// probability, and the answer ends where the form does.
    pub form: Option<Shape>,
    /// Field or flag that asks for the form, which errors name; may be empty.
    pub form_field: String,
    /// Whether JSON of the form has no white space; else it has what the model likes.
    pub compact_json: bool,
    /// Code of the caller that changes logits.
    pub processors: Processors,
    /// The seed that was drawn for the request. A request that still has it, and draws its tokens,
    /// cannot be repeated.
    pub drawn_seed: Option<u64>,
}

impl Default for Generation {
    fn default() -> Self {
        Self {
            sampling: SamplingParams::default(),
            texts: SamplingTexts::default(),
            seeds: Vec::new(),
            max_tokens: None,
            stop: Vec::new(),
            stop_tokens: Vec::new(),
            ignore_eos: false,
            include_stop: false,
            keep_special: false,
            prompt_logprobs: None,
            logprobs_mode: LogprobsMode::default(),
            input: InputOptions::default(),
            n: 1,
            best_of: None,
            beams: None,
            service: Service::default(),
            speculation: Speculation::default(),
            prediction: None,
            form: None,
            form_field: String::new(),
            compact_json: false,
            processors: Processors::default(),
            drawn_seed: None,
        }
    }
}

impl Generation {
    /// Answers generated per prompt.
    pub fn n_made(&self) -> u32 {
        self.best_of.unwrap_or(self.n)
    }

    /// Sequences computed per prompt: its answers, or the beams of its search.
    pub(crate) fn n_sequences(&self) -> usize {
        self.beams.map_or(self.n_made() as usize, |params| params.width)
    }

    /// Whether the same request always has the same answers: it takes the likeliest token, or its
    /// caller chose the seed.
    pub fn is_repeatable(&self) -> bool {
        let is_greedy = self.sampling.temperature == 0.0;
        let is_seeded = self.drawn_seed != Some(self.sampling.seed) || !self.seeds.is_empty();
        (is_greedy || is_seeded) && self.beams.is_none() && self.processors.is_empty()
    }

    /// Whether the same request always has the same answers where drafts are judged like this.
    pub(crate) fn is_repeatable_with(&self, verification: Verification) -> bool {
        let is_exact = match verification {
            Verification::Match => true,
            // The same distribution, but drafts decide which random numbers are drawn.
            Verification::Rejection => self.sampling.temperature == 0.0,
            Verification::Typical => false,
        };
        self.is_repeatable() && (is_exact || self.speculation.method == SpecMethod::Off)
    }

    /// Checks every range.
    ///
    /// # Errors
    ///
    /// Names the first parameter out of its range.
    pub fn validate(&self) -> Result<(), ParamError> {
        self.sampling.validate()?;
        self.texts.validate()?;
        let fail = |param, expected, got: &dyn std::fmt::Display| {
            Err(ParamError { param, expected, got: got.to_string() })
        };
        if let Some(params) = self.beams {
            beam::validate(self, params)?;
        }
        if self.max_tokens == Some(0) && self.prompt_logprobs.is_none() {
            return fail("max_tokens", "at least 1", &0);
        }
        if let Some(n) = self.prompt_logprobs.filter(|n| *n > limits::TOP_LOGPROBS) {
            return fail("prompt_logprobs", "at most 20", &n);
        }
        if let Some(Truncation::Tokens(0)) = self.input.truncate {
            return fail("truncate_prompt_tokens", "at least 1, or -1", &0);
        }
        if let Some(max_tokens) = self.max_tokens {
            self.sampling.validate_length(max_tokens)?;
        }
        if !(1..=limits::CHOICES as u32).contains(&self.n) {
            return fail("n", "from 1 to 128", &self.n);
        }
        if let Some(best_of) = self.best_of
            && !(self.n..=limits::CHOICES as u32).contains(&best_of)
        {
            return fail("best_of", "from `n` to 128", &best_of);
        }
        crate::form::check(self)?;
        if !self.seeds.is_empty() && self.seeds.len() != self.n_made() as usize {
            let got = format!("{} for {} answers", self.seeds.len(), self.n_made());
            return fail("seeds", "one seed for each answer (`n`, or `best_of`)", &got);
        }
        self.service.validate()?;
        self.speculation.validate()?;
        if self.stop.len() > limits::STOP_STRINGS {
            return fail("stop", "at most 16 texts", &self.stop.len());
        }
        for stop in &self.stop {
            if stop.is_empty() {
                return fail("stop", "texts that are not empty", &"an empty text");
            }
            if stop.len() > limits::STOP_STRING_BYTES {
                return fail("stop", "texts of at most 1024 bytes", &stop.len());
            }
        }
        if self.stop_tokens.len() > limits::LOGIT_BIAS_ENTRIES {
            return fail("stop_token_ids", "at most 1024 tokens", &self.stop_tokens.len());
        }
        Ok(())
    }
}

/// How a prompt becomes tokens.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct InputOptions {
    /// Whether the tokenizer adds its special tokens; `None` for what is usual: it does so for a
    /// text, and not for a conversation, whose template writes them.
    pub add_special: Option<bool>,
    /// Tokens at the end of a prompt that are used, where it has more; `None` for all.
    pub truncate: Option<Truncation>,
}

/// The part of a long prompt that is used: its end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Truncation {
    /// At most this many tokens.
    Tokens(usize),
    /// As many as leave room for the answer in the context: for `max_tokens`, or for one token.
    ToContext,
}

/// A conversation to answer.
#[derive(Clone, Debug)]
pub struct ChatRequest {
    /// The conversation so far.
    pub messages: Vec<Message>,
    /// How the answer is generated.
    pub generation: Generation,
    /// Tools, thoughts and variables of the template.
    pub options: ChatOptions,
}

impl ChatRequest {
    /// A conversation without tools.
    pub fn new(messages: Vec<Message>, generation: Generation) -> Self {
        Self { messages, generation, options: ChatOptions::default() }
    }
}

/// Texts to continue.
#[derive(Clone, Debug)]
pub struct CompletionRequest {
    /// The texts; each is continued separately.
    pub prompts: Vec<Prompt>,
    /// How the continuations are generated.
    pub generation: Generation,
}

/// A text to continue, as text or as tokens.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Prompt {
    /// Encoded with the special tokens that the tokenizer adds.
    Text(String),
    /// Tokens, used as they are.
    Tokens(Vec<TokenId>),
    /// A text with a gap, which the answer fills. The tokenizer must have the tokens for it.
    Gap {
        /// The text before the gap.
        prefix: String,
        /// The text after the gap.
        suffix: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_checked_by_name() {
        let sampling = SamplingParams { min_tokens: 4, ..SamplingParams::default() };
        let cases = [
            ("n", Generation { n: 0, ..Generation::default() }),
            ("n", Generation { n: 129, ..Generation::default() }),
            ("max_tokens", Generation { max_tokens: Some(0), ..Generation::default() }),
            ("prompt_logprobs", Generation { prompt_logprobs: Some(21), ..Generation::default() }),
            ("truncate_prompt_tokens", {
                let truncate = Some(Truncation::Tokens(0));
                let input = InputOptions { truncate, ..InputOptions::default() };
                Generation { input, ..Generation::default() }
            }),
            ("min_tokens", Generation { max_tokens: Some(3), sampling, ..Generation::default() }),
            ("seeds", Generation { seeds: vec![1, 2], ..Generation::default() }),
            ("seeds", Generation { seeds: vec![1], n: 2, ..Generation::default() }),
            ("bad_words", {
                let bad_words = vec!["x".to_owned(); 513];
                let texts = SamplingTexts { bad_words, ..Default::default() };
                Generation { texts, ..Generation::default() }
            }),
            ("logit_bias", {
                let logit_bias = vec![("x".to_owned(), f32::NAN)];
                let texts = SamplingTexts { logit_bias, ..Default::default() };
                Generation { texts, ..Generation::default() }
            }),
            ("dry_sequence_breakers", {
                let dry_breakers = Some(vec![String::new()]);
                let texts = SamplingTexts { dry_breakers, ..Default::default() };
                Generation { texts, ..Generation::default() }
            }),
            ("stop", Generation { stop: vec![String::new()], ..Generation::default() }),
            ("stop", Generation { stop: vec!["a".into(); 17], ..Generation::default() }),
            ("stop", Generation { stop: vec!["a".repeat(1025)], ..Generation::default() }),
        ];
        for (param, generation) in cases {
            assert_eq!(generation.validate().expect_err(param).param, param);
        }
        assert_eq!(Generation::default().validate(), Ok(()));
    }
}
