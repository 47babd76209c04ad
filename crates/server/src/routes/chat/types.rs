//! JSON of `POST /v1/chat/completions`: requests, answers and chunks.

use crate::error::ApiError;
use crate::limits;
use crate::wire::{
    Accept, Fields, GenerationFields, Ids, PromptLogprobs, Shown, StopReason, StreamOptions,
    TimingsBody, UsageBody, check_unhonoured, n_predict, request_id, stream_options,
};
use pelton_base::TokenId;
use pelton_text::Message;
use serde::Serialize;

use super::rendering::Rendering;
use super::thinking::Thinking;
use super::tools::Tools;
use super::validate::{message, prediction};

/// Parameters of this endpoint that are not honoured.
const UNHONOURED: &[(&str, Accept)] = &[
    ("audio", Accept::Nothing),
    ("modalities", Accept::Only("[\"text\"]")),
    ("functions", Accept::Empty),
    ("function_call", Accept::Only("\"none\"")),
    ("moderation", Accept::Nothing),
    ("prompt_cache_options", Accept::Empty),
    ("verbosity", Accept::Only("\"medium\"")),
    ("web_search_options", Accept::Nothing),
    ("mm_processor_kwargs", Accept::Empty),
    // Thoughts are streamed as they come.
    ("stream_reasoning", Accept::Only("true")),
];

/// A request as it was sent; types are right, ranges are not checked.
#[derive(Debug)]
pub(crate) struct ChatBody {
    pub(crate) model: Option<String>,
    pub(crate) messages: Vec<Message>,
    pub(crate) generation: GenerationFields,
    pub(crate) best_of: Option<u32>,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) max_completion_tokens: Option<usize>,
    pub(crate) logprobs: bool,
    pub(crate) top_logprobs: Option<usize>,
    /// llama-server's names for `max_tokens`, and for both fields of log probabilities; 0 is none.
    pub(crate) n_predict: Option<Option<usize>>,
    pub(crate) n_probs: Option<usize>,
    pub(crate) shown: Shown,
    pub(crate) request_id: Option<String>,
    pub(crate) stream: Option<StreamOptions>,
    pub(crate) prediction: Option<String>,
    pub(crate) tools: Tools,
    pub(crate) thinking: Thinking,
    pub(crate) rendering: Rendering,
}

impl ChatBody {
    /// Reads every field, and refuses unknown parameters and parameters that are not honoured.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, ApiError> {
        Self::of(Fields::of_body(bytes)?)
    }

    /// Reads every field of an object.
    pub(crate) fn of(mut fields: Fields<'_>) -> Result<Self, ApiError> {
        check_unhonoured(&mut fields, UNHONOURED)?;
        let messages = fields
            .list("messages", limits::MESSAGES, message)?
            .ok_or_else(|| ApiError::param("messages", "`messages` is missing"))?;
        let body = Self {
            model: fields.string("model")?,
            messages,
            generation: GenerationFields::read(&mut fields)?,
            best_of: fields.u32("best_of")?,
            max_tokens: fields.usize("max_tokens")?,
            max_completion_tokens: fields.usize("max_completion_tokens")?,
            logprobs: fields.bool("logprobs")?.unwrap_or(false),
            top_logprobs: fields.usize("top_logprobs")?,
            n_predict: n_predict(&mut fields)?,
            n_probs: fields.usize("n_probs")?,
            shown: Shown::read(&mut fields)?,
            request_id: request_id(&mut fields)?,
            stream: stream_options(&mut fields)?,
            prediction: prediction(&mut fields)?,
            tools: Tools::read(&mut fields)?,
            thinking: Thinking::read(&mut fields)?,
            rendering: Rendering::read(&mut fields)?,
        };
        fields.finish()?;
        Ok(body)
    }
}

/// The answer in one piece.
#[derive(Serialize)]
pub(crate) struct ChatAnswer {
    pub(crate) id: String,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) choices: Vec<Choice>,
    pub(crate) usage: UsageBody,
    pub(crate) system_fingerprint: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_token_ids: Option<Ids>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_logprobs: Option<PromptLogprobs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timings: Option<TimingsBody>,
}

#[derive(Serialize)]
pub(crate) struct Choice {
    pub(crate) index: usize,
    pub(crate) message: AnswerMessage,
    pub(crate) logprobs: Option<Logprobs>,
    pub(crate) finish_reason: &'static str,
    /// The stop string or token of the request that ended the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stop_reason: Option<StopReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Vec<TokenId>>,
    /// Whether something that began as a call was none, and is part of the content.
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) malformed_tool_call: bool,
}

#[derive(Serialize)]
pub(crate) struct AnswerMessage {
    pub(crate) role: &'static str,
    /// `null` where the answer has calls and no text.
    pub(crate) content: Option<String>,
    pub(crate) refusal: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<AnswerCall>,
    /// The thought before the answer, under vLLM's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning: Option<String>,
    /// The same under DeepSeek's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
fn is_false(is_set: &bool) -> bool {
    !*is_set
}

/// A call of a tool.
#[derive(Serialize)]
pub(crate) struct AnswerCall {
    pub(crate) id: String,
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    pub(crate) function: AnswerFunction,
}

#[derive(Serialize)]
pub(crate) struct AnswerFunction {
    pub(crate) name: String,
    /// JSON text of an object.
    pub(crate) arguments: String,
}

/// One piece of a streamed answer.
#[derive(Serialize)]
pub(crate) struct ChatChunk<'a> {
    pub(crate) id: &'a str,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    pub(crate) system_fingerprint: &'static str,
    pub(crate) choices: Vec<ChunkChoice>,
    /// Absent unless the request asks for it; then `null` in all but the last chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Option<UsageBody>>,
    /// In the first chunk alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_token_ids: Option<Ids>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timings: Option<TimingsBody>,
    /// Random letters, in chunks that are to be alike.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) obfuscation: Option<String>,
}

#[derive(Serialize)]
pub(crate) struct ChunkChoice {
    pub(crate) index: usize,
    pub(crate) delta: Delta,
    pub(crate) logprobs: Option<Logprobs>,
    pub(crate) finish_reason: Option<&'static str>,
    /// As in [`Choice`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stop_reason: Option<StopReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Vec<TokenId>>,
    /// As in [`Choice`]; only the last piece of an answer says so.
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) malformed_tool_call: bool,
}

impl ChunkChoice {
    /// A piece that neither ends an answer nor reports log probabilities.
    pub(crate) fn new(index: usize, delta: Delta) -> Self {
        let (logprobs, finish_reason, stop_reason, token_ids) = (None, None, None, None);
        let malformed_tool_call = false;
        Self { index, delta, logprobs, finish_reason, stop_reason, token_ids, malformed_tool_call }
    }
}

#[derive(Default, Serialize)]
pub(crate) struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<DeltaCall>,
}

/// A piece of a call: its beginning has an id and a name, all other pieces only arguments.
#[derive(Serialize)]
pub(crate) struct DeltaCall {
    pub(crate) index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<&'static str>,
    pub(crate) function: DeltaFunction,
}

#[derive(Serialize)]
pub(crate) struct DeltaFunction {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    pub(crate) arguments: String,
}

#[derive(Serialize)]
pub(crate) struct Logprobs {
    pub(crate) content: Vec<TokenLogprob>,
    pub(crate) refusal: Option<Vec<TokenLogprob>>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct TokenLogprob {
    pub(crate) token: String,
    pub(crate) logprob: f32,
    pub(crate) bytes: Vec<u8>,
    pub(crate) top_logprobs: Vec<TopLogprob>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct TopLogprob {
    pub(crate) token: String,
    pub(crate) logprob: f32,
    pub(crate) bytes: Vec<u8>,
}
