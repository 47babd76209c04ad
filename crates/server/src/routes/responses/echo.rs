//! The response object: what was asked, how far it has come, and what it holds.

use pelton_base::Usage;
use serde::Serialize;
use serde_json::value::RawValue;

use super::items::Item;
use crate::error::ApiError;

/// The fields of a request that its response repeats.
#[derive(Debug, Serialize)]
pub(crate) struct Echo {
    pub(crate) background: bool,
    pub(crate) instructions: Option<String>,
    pub(crate) max_output_tokens: Option<usize>,
    pub(crate) max_tool_calls: Option<usize>,
    pub(crate) metadata: Box<RawValue>,
    pub(crate) parallel_tool_calls: bool,
    pub(crate) previous_response_id: Option<String>,
    pub(crate) prompt_cache_key: Option<String>,
    pub(crate) reasoning: ReasoningEcho,
    pub(crate) safety_identifier: Option<String>,
    pub(crate) service_tier: &'static str,
    pub(crate) store: bool,
    pub(crate) temperature: f32,
    pub(crate) text: TextEcho,
    pub(crate) tool_choice: Box<RawValue>,
    /// The tools that the model may call; others were left out.
    pub(crate) tools: Vec<Box<RawValue>>,
    pub(crate) top_logprobs: usize,
    pub(crate) top_p: f32,
    pub(crate) truncation: &'static str,
    pub(crate) user: Option<String>,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct ReasoningEcho {
    pub(crate) effort: Option<String>,
    pub(crate) summary: Option<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct TextEcho {
    pub(crate) format: Box<RawValue>,
    pub(crate) verbosity: &'static str,
}

/// How far a response has come.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(clippy::enum_variant_names, reason = "the names of the API")]
pub(crate) enum Progress {
    InProgress,
    Completed,
    Incomplete,
    Failed,
    Cancelled,
}

/// A response.
#[derive(Serialize)]
pub(crate) struct ResponseBody<'a> {
    pub(crate) id: &'a str,
    pub(crate) object: &'static str,
    /// Seconds since 1970.
    pub(crate) created_at: u64,
    pub(crate) completed_at: Option<u64>,
    pub(crate) status: Progress,
    pub(crate) error: Option<Failure<'a>>,
    pub(crate) incomplete_details: Option<Incomplete>,
    pub(crate) model: &'a str,
    pub(crate) output: &'a [Item],
    pub(crate) usage: Option<UsageBody>,
    #[serde(flatten)]
    pub(crate) echo: &'a Echo,
}

/// Why an answer is not whole.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Incomplete {
    pub(crate) reason: &'static str,
}

/// Why a response failed, in the codes that clients know.
#[derive(Serialize)]
pub(crate) struct Failure<'a> {
    code: &'static str,
    message: &'a str,
}

impl<'a> Failure<'a> {
    pub(crate) fn new(error: &'a ApiError) -> Self {
        let code = match error.status.as_u16() {
            429 => "rate_limit_exceeded",
            400..500 => "invalid_prompt",
            _ => "server_error",
        };
        Self { code, message: &error.body.message }
    }
}

/// Tokens as clients of this dialect read them.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct UsageBody {
    input_tokens: usize,
    input_tokens_details: InputDetails,
    output_tokens: usize,
    output_tokens_details: OutputDetails,
    total_tokens: usize,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct InputDetails {
    cached_tokens: usize,
    /// Every prompt is cached, which costs nothing here.
    cache_write_tokens: usize,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct OutputDetails {
    reasoning_tokens: usize,
}

impl From<Usage> for UsageBody {
    fn from(usage: Usage) -> Self {
        let cached_tokens = usage.cached_tokens;
        Self {
            input_tokens: usage.prompt_tokens,
            input_tokens_details: InputDetails { cached_tokens, cache_write_tokens: 0 },
            output_tokens: usage.completion_tokens,
            output_tokens_details: OutputDetails { reasoning_tokens: usage.reasoning_tokens },
            total_tokens: usage.prompt_tokens + usage.completion_tokens,
        }
    }
}
