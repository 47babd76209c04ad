//! What crosses the border of the scheduler each step: the plan out, the outcome in, the news out.
//!
//! All three are flat, a few vectors however many sequences there are, and are refilled step after
//! step by whoever owns them:
//!
//! ```text
//! sequences  [ req-4      | req-7        | req-9 ]
//! tokens     [ t          | t t t t t    | t     ]   each sequence names its range
//! blocks     [ 7 2 9      | 3 5          | 8 1 6 ]   of both
//! ```

use crate::BlockId;
use pelton_base::{FinishReason, RequestId, TokenId, Usage};
use std::ops::Range;

/// One step's work: which tokens of which sequences to compute, and where their KV goes.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct SchedulerOutput {
    /// Decode rows first, then prefill chunks; within each, in order of arrival.
    pub sequences: Vec<ScheduledSequence>,
    /// The tokens to compute: those of all sequences, one after the other.
    pub tokens: Vec<TokenId>,
    /// The block tables of all sequences, one after the other.
    pub blocks: Vec<BlockId>,
    /// Requests that gave up their blocks to make this plan possible, latest arrival first.
    pub preempted: Vec<RequestId>,
}

impl SchedulerOutput {
    /// The tokens of one of its sequences.
    pub fn tokens_of(&self, share: &ScheduledSequence) -> &[TokenId] {
        &self.tokens[share.tokens.clone()]
    }

    /// The block table of one of its sequences; position `p` lives in block `p / block_size` of it.
    pub fn block_table_of(&self, share: &ScheduledSequence) -> &[BlockId] {
        &self.blocks[share.blocks.clone()]
    }

    /// Whether there is nothing to compute.
    pub fn is_empty(&self) -> bool {
        self.sequences.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        let Self { sequences, tokens, blocks, preempted } = self;
        sequences.clear();
        tokens.clear();
        blocks.clear();
        preempted.clear();
    }
}

/// One sequence's share of a step.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ScheduledSequence {
    /// Whose tokens these are.
    pub id: RequestId,
    /// Which tokens of the plan are its own, at least one.
    pub tokens: Range<usize>,
    /// Position of the first of them; KV exists for every position before it.
    pub first_position: usize,
    /// Which blocks of the plan are its table.
    pub blocks: Range<usize>,
    /// Whether the last of `tokens` is the last one known, so that its logits are sampled.
    pub samples: bool,
    /// Output tokens that exist already: the index of the one that would be sampled now.
    pub n_generated: usize,
}

/// What came of a plan.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct StepOutput {
    /// New tokens of every sequence whose share had `samples` set: one each, or several in their
    /// order once drafts are verified.
    ///
    /// An answer that does not match the plan (tokens for a share that did not sample, none for
    /// one that did) ends that request with [`FinishReason::Error`] and touches no other.
    pub sampled: Vec<(RequestId, TokenId)>,
    /// Requests of this plan that could not be computed; each ends with [`FinishReason::Error`].
    pub failed: Vec<RequestId>,
}

impl StepOutput {
    /// Forgets the step and keeps the memory.
    pub fn clear(&mut self) {
        let Self { sampled, failed } = self;
        sampled.clear();
        failed.clear();
    }
}

/// What a step brought, to each sequence that has news.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct StepUpdates {
    /// In order of arrival.
    pub sequences: Vec<SequenceUpdate>,
    /// The tokens to hand on: those of all sequences, one after the other.
    pub tokens: Vec<TokenId>,
}

impl StepUpdates {
    /// The new tokens of one of its sequences.
    pub fn tokens_of(&self, update: &SequenceUpdate) -> &[TokenId] {
        &self.tokens[update.new_tokens.clone()]
    }

    pub(crate) fn clear(&mut self) {
        let Self { sequences, tokens } = self;
        sequences.clear();
        tokens.clear();
    }
}

/// News of one sequence after a step.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SequenceUpdate {
    /// Whose news this is.
    pub id: RequestId,
    /// Which tokens of the updates are its own, the stop token included; those sampled beyond the
    /// end are cut off.
    pub new_tokens: Range<usize>,
    /// Why the sequence ended, if it did. Its blocks are free again.
    pub finish: Option<FinishReason>,
    /// Tokens counted so far.
    pub usage: Usage,
}
