//! What crosses the border of the scheduler each step: the plan out, the outcome in, the news out.

use crate::BlockId;
use pelton_base::{FinishReason, RequestId, TokenId, Usage};

/// One step's work: which tokens of which sequences to compute, and where their KV goes.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[must_use]
pub struct SchedulerOutput {
    /// Decode rows first, then prefill chunks; within each, in order of arrival.
    pub sequences: Vec<ScheduledSequence>,
    /// Requests that gave up their blocks to make this plan possible, latest arrival first.
    pub preempted: Vec<RequestId>,
}

impl SchedulerOutput {
    /// Number of tokens to compute, over all sequences.
    pub fn n_tokens(&self) -> usize {
        self.sequences.iter().map(|sequence| sequence.tokens.len()).sum()
    }

    /// Whether there is nothing to compute.
    pub fn is_empty(&self) -> bool {
        self.sequences.is_empty()
    }
}

/// One sequence's share of a step.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ScheduledSequence {
    /// Whose tokens these are.
    pub id: RequestId,
    /// The tokens to compute, at least one.
    pub tokens: Vec<TokenId>,
    /// Position of the first of them; KV exists for every position before it.
    pub first_position: usize,
    /// Blocks of the sequence; position `p` lives in `block_table[p / block_size]`.
    pub block_table: Vec<BlockId>,
    /// Whether the last of `tokens` is the last one known, so that its logits are sampled.
    pub samples: bool,
    /// Output tokens that exist already: the index of the one that would be sampled now.
    pub n_generated: usize,
}

/// The tokens that one step gave to one sequence: one, or several once drafts are verified.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct SampledTokens(pub Vec<TokenId>);

impl From<TokenId> for SampledTokens {
    fn from(token: TokenId) -> Self {
        Self(vec![token])
    }
}

/// What came of a plan.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct StepOutput {
    /// New tokens of every sequence whose share had `samples` set.
    ///
    /// An answer that does not match the plan (tokens for a share that did not sample, none for
    /// one that did) ends that request with [`FinishReason::Error`] and touches no other.
    pub sampled: Vec<(RequestId, SampledTokens)>,
    /// Requests of this plan that could not be computed; each ends with [`FinishReason::Error`].
    pub failed: Vec<RequestId>,
}

/// News of one sequence after a step.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SequenceUpdate {
    /// Whose news this is.
    pub id: RequestId,
    /// Tokens to hand on, the stop token included; those sampled beyond the end are cut off.
    pub new_tokens: Vec<TokenId>,
    /// Why the sequence ended, if it did. Its blocks are free again.
    pub finish: Option<FinishReason>,
    /// Tokens counted so far.
    pub usage: Usage,
}
