//! JSON of `POST /v1/completions`: requests, answers and chunks.

use pelton_base::{TokenId, limits};
use pelton_llm::Prompt;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::models::Traits;
use crate::wire::{
    Accept, Fields, Forms, GenerationFields, Ids, PromptLogprobs, Shown, StopReason, StreamOptions,
    THOUGHTS, TimingsBody, UsageBody, check_unhonoured, inputs, n_predict, request_id,
    stream_options,
};

/// Parameters of this endpoint that are not honoured.
const UNHONOURED: &[(&str, Accept)] =
    &[("tools", Accept::Empty), ("top_logprobs", Accept::Only("0"))];

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
    /// llama-server's name for `max_tokens`.
    pub(crate) n_predict: Option<Option<usize>>,
    pub(crate) logprobs: Option<usize>,
    /// llama-server's name for `logprobs`; 0 is none.
    pub(crate) n_probs: Option<usize>,
    pub(crate) suffix: Option<String>,
    pub(crate) shown: Shown,
    pub(crate) request_id: Option<String>,
    pub(crate) stream: Option<StreamOptions>,
}

impl CompletionBody {
    /// Reads every field, and refuses unknown parameters and parameters that are not honoured.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(bytes)?;
        check_unhonoured(&mut fields, UNHONOURED)?;
        check_unhonoured(&mut fields, THOUGHTS)?;
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
            n_predict: n_predict(&mut fields)?,
            logprobs: fields.usize("logprobs")?,
            n_probs: fields.usize("n_probs")?,
            suffix: fields.string("suffix")?.filter(|suffix| !suffix.is_empty()),
            shown: Shown::read(&mut fields)?,
            request_id: request_id(&mut fields)?,
            stream: stream_options(&mut fields)?,
        };
        fields.finish()?;
        Ok(body)
    }

    /// The facts that rules ask for which choose a model.
    pub(crate) fn traits(&self) -> Traits {
        let characters = |prompt: &Prompt| match prompt {
            Prompt::Text(text) => text.chars().count(),
            // A token of English text has about four characters.
            Prompt::Tokens(tokens) => 4 * tokens.len(),
            Prompt::Gap { prefix, suffix } => prefix.chars().count() + suffix.chars().count(),
        };
        let is_ids = |prompt: &Prompt| matches!(prompt, Prompt::Tokens(_));
        Traits {
            characters: self.prompts.iter().map(characters).sum(),
            turns: 1,
            has_token_ids: self.generation.has_token_ids() || self.prompts.iter().any(is_ids),
            // Scores of an echo, and gaps in code.
            is_particular: self.generation.is_particular()
                || self.shown.echo
                || self.suffix.is_some(),
            ..Traits::default()
        }
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timings: Option<TimingsBody>,
    /// Random letters, in chunks that are to be alike.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) obfuscation: Option<String>,
}

#[derive(Serialize)]
pub(crate) struct Choice {
    pub(crate) index: usize,
    pub(crate) text: String,
    pub(crate) logprobs: Option<Logprobs>,
    pub(crate) finish_reason: Option<&'static str>,
    /// The stop string or token of the request that ended the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stop_reason: Option<StopReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Vec<TokenId>>,
    /// In the first piece of an answer, as are the scores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_token_ids: Option<Ids>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_logprobs: Option<PromptLogprobs>,
}

/// The older form of log probabilities: four lists of equal length.
#[derive(Default, Serialize)]
pub(crate) struct Logprobs {
    pub(crate) tokens: Vec<String>,
    /// `null` for the first token of a prompt.
    pub(crate) token_logprobs: Vec<Option<f64>>,
    /// From tokens to their log probabilities; the chosen token is always among them.
    pub(crate) top_logprobs: Vec<Option<Map<String, Value>>>,
    /// Offset of each token in the text, in characters.
    pub(crate) text_offset: Vec<usize>,
}
