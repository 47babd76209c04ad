//! Tokens counted, as clients read them.

use pelton_base::Usage;

/// The `usage` object.
#[derive(Clone, Copy, Debug, Eq, PartialEq, serde::Serialize)]
pub(crate) struct UsageBody {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptDetails,
    completion_tokens_details: CompletionDetails,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, serde::Serialize)]
struct PromptDetails {
    cached_tokens: usize,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, serde::Serialize)]
struct CompletionDetails {
    accepted_prediction_tokens: usize,
    rejected_prediction_tokens: usize,
    reasoning_tokens: usize,
}

impl From<Usage> for UsageBody {
    fn from(usage: Usage) -> Self {
        Self {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            total_tokens: usage.prompt_tokens + usage.completion_tokens,
            prompt_tokens_details: PromptDetails { cached_tokens: usage.cached_tokens },
            completion_tokens_details: CompletionDetails {
                accepted_prediction_tokens: usage.accepted_prediction_tokens,
                rejected_prediction_tokens: usage.rejected_prediction_tokens,
                reasoning_tokens: usage.reasoning_tokens,
            },
        }
    }
}
