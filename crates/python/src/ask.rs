//! Requests from Python, in the types of the library.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use pelton_base::{Shape, TokenId};
use pelton_llm::{
    CompletionRequest, Generating, Generation, Llm, LlmError, Prompt, SamplingTexts, Speculation,
};
use pelton_text::EncodeOptions;
use pyo3::prelude::*;

use crate::processor::{self, Fault};

/// The attributes of a `pelton.SamplingParams`.
#[derive(FromPyObject)]
pub(crate) struct SamplingParams {
    n: u32,
    best_of: Option<u32>,
    presence_penalty: f32,
    frequency_penalty: f32,
    repetition_penalty: f32,
    temperature: f32,
    top_p: f32,
    top_k: i64,
    min_p: f32,
    seed: Option<u64>,
    stop: Vec<String>,
    stop_token_ids: Vec<u32>,
    ignore_eos: bool,
    max_tokens: Option<usize>,
    min_tokens: usize,
    logprobs: Option<usize>,
    logit_bias: Option<BTreeMap<u32, f32>>,
    bad_words: Option<Vec<String>>,
    allowed_token_ids: Option<Vec<u32>>,
    typical_p: f32,
    top_n_sigma: f32,
    seeds: Option<Vec<u64>>,
    logits_processors: Option<Vec<Py<PyAny>>>,
    prediction: Option<String>,
    /// A kind, and texts.
    #[pyo3(attribute("_form"))]
    form: Option<(String, Vec<String>)>,
}

/// A prompt, how it is answered, and what its callbacks raised.
pub(crate) struct Job {
    prompt: Text,
    pub(crate) generation: Generation,
    pub(crate) fault: Fault,
}

/// A prompt as text or as tokens.
#[derive(FromPyObject)]
pub(crate) enum Text {
    #[pyo3(transparent)]
    Words(String),
    #[pyo3(transparent)]
    Tokens(Vec<u32>),
}

impl Job {
    /// Lays parameters over the model's own; `None` takes those.
    pub(crate) fn new(
        llm: &Llm,
        prompt: Text,
        params: Option<SamplingParams>,
        priority: i32,
    ) -> Self {
        let fault = Arc::new(Mutex::new(None));
        let mut generation = llm.default_generation();
        if let Some(params) = params {
            params.over(&mut generation, &fault);
        }
        generation.service.priority = priority;
        Self { prompt, generation, fault }
    }

    /// A prompt with parameters of its own.
    pub(crate) fn of(prompt: Text, generation: Generation, fault: Fault) -> Self {
        Self { prompt, generation, fault }
    }

    /// Answers to generate.
    pub(crate) fn n_made(&self) -> usize {
        self.generation.n_made() as usize
    }

    /// Starts the answers; returns the tokens of the prompt, too.
    ///
    /// # Errors
    ///
    /// As [`Llm::complete`].
    pub(crate) fn start(&self, llm: &Llm) -> Result<(Vec<TokenId>, Generating), LlmError> {
        let tokens = match &self.prompt {
            Text::Tokens(tokens) => tokens.iter().copied().map(TokenId).collect(),
            Text::Words(text) => {
                let options = EncodeOptions { add_special: true, parse_special: true };
                let limit = llm.info().context_tokens.saturating_sub(1);
                llm.tokenizer().encode_at_most(text, options, limit)?
            }
        };
        let prompts = vec![Prompt::Tokens(tokens.clone())];
        let generation = self.generation.clone();
        Ok((tokens, llm.complete(CompletionRequest { prompts, generation })?))
    }
}

impl SamplingParams {
    fn over(self, generation: &mut Generation, fault: &Fault) {
        let sampling = &mut generation.sampling;
        let seed = self.seed.unwrap_or(sampling.seed);
        *sampling = pelton_base::SamplingParams {
            temperature: self.temperature,
            // vLLM writes -1 for all tokens.
            top_k: self.top_k.clamp(0, u32::MAX.into()) as u32,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: pairs(self.logit_bias),
            typical_p: self.typical_p,
            top_n_sigma: self.top_n_sigma,
            allowed_tokens: self
                .allowed_token_ids
                .map(|tokens| tokens.into_iter().map(TokenId).collect()),
            min_tokens: self.min_tokens,
            seed,
            logprobs: self.logprobs,
            ..pelton_base::SamplingParams::default()
        };
        generation.texts = SamplingTexts {
            bad_words: self.bad_words.unwrap_or_default(),
            ..SamplingTexts::default()
        };
        generation.seeds = self.seeds.unwrap_or_default();
        generation.max_tokens = self.max_tokens;
        generation.stop = self.stop;
        generation.stop_tokens = self.stop_token_ids.into_iter().map(TokenId).collect();
        generation.ignore_eos = self.ignore_eos;
        generation.n = self.n;
        generation.best_of = self.best_of;
        generation.speculation = Speculation::default();
        generation.prediction = self.prediction;
        generation.form_field =
            self.form.as_ref().map(|(kind, _)| kind.clone()).unwrap_or_default();
        generation.form = self.form.map(shape);
        for callback in self.logits_processors.into_iter().flatten() {
            processor::push(&mut generation.processors, callback, fault);
        }
    }
}

/// The form of a `StructuredOutputsParams`, whose texts have been checked.
fn shape((kind, mut texts): (String, Vec<String>)) -> Shape {
    let text = |texts: &mut Vec<String>| texts.pop().unwrap_or_default();
    match kind.as_str() {
        "choice" => Shape::OneOf(texts.into_iter().map(Shape::Text).collect()),
        "regex" => Shape::Regex(text(&mut texts)),
        "grammar" => match text(&mut texts) {
            grammar if grammar.contains("::=") => Shape::Gbnf(grammar),
            grammar => Shape::Lark(grammar),
        },
        _ => Shape::Json { schema: text(&mut texts), path: "json".to_owned() },
    }
}

fn pairs(biases: Option<BTreeMap<u32, f32>>) -> Vec<(TokenId, f32)> {
    biases.into_iter().flatten().map(|(token, bias)| (TokenId(token), bias)).collect()
}
