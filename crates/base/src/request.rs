//! A request to the engine, and the end of its answer.

use crate::{Constraint, SamplingParams, ServiceParams};

/// Index of one token in a model's vocabulary.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    Eq,
    Hash,
    Ord,
    PartialEq,
    PartialOrd,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(transparent)]
#[repr(transparent)]
pub struct TokenId(pub u32);

impl std::fmt::Display for TokenId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Names one request inside one engine; never reused.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct RequestId(pub u64);

impl std::fmt::Display for RequestId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "req-{}", self.0)
    }
}

/// One sequence to generate, with the name that the engine gave it.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Its name in the engine.
    pub id: RequestId,
    /// Prompt, sampling and limits.
    pub ask: Ask,
}

/// One sequence to generate: tokens in, tokens out.
///
/// A request with several choices (`n > 1`) is several of these that differ in `choice`.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// The prompt; never empty.
    pub prompt: Vec<TokenId>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Number of this choice among `n`; part of the sampling key, so that choices differ.
    pub choice: u32,
    /// Most tokens to generate; at least one. The end of the context may come first.
    pub max_tokens: usize,
    /// Tokens that end the answer; the token itself is part of the output.
    pub stop_tokens: Vec<TokenId>,
    /// Tenant, urgency and latency targets, for the scheduler.
    pub service: ServiceParams,
    /// A guess at the answer, to draft from; it changes the speed of the answer and no token.
    pub prediction: Vec<TokenId>,
    /// The rule that the answer obeys.
    pub constraint: Option<Constraint>,
}

/// The reason why an answer ended.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FinishReason {
    /// A stop token or stop string.
    Stop,
    /// `max_tokens`, or the end of the model's context.
    Length,
    /// The client went away or the engine shut down.
    Aborted,
    /// The executor failed on this request.
    Error,
}

/// Tokens counted for one request.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, serde::Serialize)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens generated, the stop token included.
    pub completion_tokens: usize,
    /// Prompt tokens whose KV was found in a cache.
    pub cached_tokens: usize,
    /// Generated tokens of thoughts, before the answer proper.
    pub reasoning_tokens: usize,
    /// Drafted tokens that became part of the answer.
    pub accepted_prediction_tokens: usize,
    /// Drafted tokens that were rejected.
    pub rejected_prediction_tokens: usize,
}
