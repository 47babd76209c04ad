//! JSON of `POST /v1/completions`: requests, answers and chunks.

use pelton_base::limits;
use pelton_llm::Prompt;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::wire::{
    Accept, Fields, Forms, GenerationFields, StreamOptions, UsageBody, check_unhonoured, inputs,
    stream_options,
};

/// Parameters of this endpoint that are not honoured.
const UNHONOURED: &[(&str, Accept)] = &[
    ("suffix", Accept::Empty),
    ("echo", Accept::Only("false")),
    ("add_special_tokens", Accept::Only("true")),
    ("tools", Accept::Empty),
    ("top_logprobs", Accept::Only("0")),
];

const PROMPTS: Forms<Prompt> = Forms { text: Prompt::Text, tokens: Prompt::Tokens };

/// A request as it was sent; types are right, ranges are not checked.
#[derive(Debug)]
pub(crate) struct CompletionBody {
    pub(crate) model: Option<String>,
    pub(crate) prompts: Vec<Prompt>,
    pub(crate) generation: GenerationFields,
    pub(crate) n: u32,
    pub(crate) best_of: Option<u32>,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) logprobs: Option<usize>,
    pub(crate) stream: Option<StreamOptions>,
}

impl CompletionBody {
    /// Reads every field, and refuses unknown parameters and parameters that are not honoured.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(bytes)?;
        check_unhonoured(&mut fields, UNHONOURED)?;
        let prompt = fields
            .take("prompt")
            .ok_or_else(|| ApiError::param("prompt", "`prompt` is missing"))?;
        let generation = GenerationFields::read(&mut fields)?;
        let body = Self {
            model: fields.string("model")?,
            prompts: inputs("prompt", prompt, limits::PROMPTS, PROMPTS)?,
            n: generation.n(),
            generation,
            best_of: fields.u32("best_of")?,
            max_tokens: fields.usize("max_tokens")?,
            logprobs: fields.usize("logprobs")?,
            stream: stream_options(&mut fields)?,
        };
        fields.finish()?;
        Ok(body)
    }
}

/// The answer in one piece, or one piece of a stream.
#[derive(Serialize)]
pub(crate) struct CompletionAnswer<'a> {
    pub(crate) id: &'a str,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    pub(crate) system_fingerprint: &'static str,
    pub(crate) choices: Vec<Choice>,
    /// Absent in a stream unless the request asks for it; then `null` in all but the last chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Option<UsageBody>>,
}

#[derive(Serialize)]
pub(crate) struct Choice {
    pub(crate) index: usize,
    pub(crate) text: String,
    pub(crate) logprobs: Option<Logprobs>,
    pub(crate) finish_reason: Option<&'static str>,
}

/// The older form of log probabilities: four lists of equal length.
#[derive(Default, Serialize)]
pub(crate) struct Logprobs {
    pub(crate) tokens: Vec<String>,
    pub(crate) token_logprobs: Vec<f32>,
    /// From tokens to their log probabilities; the chosen token is always among them.
    pub(crate) top_logprobs: Vec<Map<String, Value>>,
    /// Offset of each token in the text, in characters.
    pub(crate) text_offset: Vec<usize>,
}
