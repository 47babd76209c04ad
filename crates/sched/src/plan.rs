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

use crate::{BlockId, StepLoad};
use pelton_base::{FinishReason, RequestId, TokenId, Usage};
use std::ops::Range;

/// One step's work: which tokens of which sequences to compute, and where their KV goes.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct SchedulerOutput {
    /// Decode rows first, then prefill chunks.
    pub sequences: Vec<ScheduledSequence>,
    /// The tokens to compute: those of all sequences, one after the other.
    pub tokens: Vec<TokenId>,
    /// The parents of the rows of those sequences whose drafts branch, one after the other.
    pub parents: Vec<u32>,
    /// The block tables of all sequences, one after the other.
    pub blocks: Vec<BlockId>,
    /// Blocks to copy to the host before anything else is done.
    pub swap_out: Vec<(BlockId, HostBlockId)>,
    /// Blocks to copy back from the host after that.
    pub swap_in: Vec<(HostBlockId, BlockId)>,
    /// Blocks to copy after that, from the first to the second, so that a sequence can write where
    /// others read.
    pub copies: Vec<(BlockId, BlockId)>,
    /// Requests that gave up their blocks to make this plan possible.
    pub preempted: Vec<RequestId>,
    /// What the plan asks of the machine.
    pub load: StepLoad,
}

/// Index of one KV block in the swap store of the host.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct HostBlockId(pub u32);

impl SchedulerOutput {
    /// The tokens of one of its sequences.
    pub fn tokens_of(&self, share: &ScheduledSequence) -> &[TokenId] {
        &self.tokens[share.tokens.clone()]
    }

    /// The rows of one of its sequences.
    pub fn rows_of(&self, share: &ScheduledSequence) -> Rows<'_> {
        let parents = Some(&self.parents[share.parents.clone()]);
        Rows { tokens: self.tokens_of(share), parents: parents.filter(|rows| !rows.is_empty()) }
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
        let Self { sequences, tokens, parents, blocks, swap_out, swap_in, copies, preempted, load } =
            self;
        sequences.clear();
        tokens.clear();
        parents.clear();
        blocks.clear();
        swap_out.clear();
        swap_in.clear();
        copies.clear();
        preempted.clear();
        *load = StepLoad::default();
    }
}

/// One sequence's share of a step.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ScheduledSequence {
    /// Whose tokens these are.
    pub id: RequestId,
    /// Which tokens of the plan are its own, at least one.
    pub tokens: Range<usize>,
    /// Which of the plan's parents are those of its rows; none where each follows the one before.
    pub parents: Range<usize>,
    /// Position of the first of them; KV exists for every position before it.
    pub first_position: usize,
    /// Which blocks of the plan are its table.
    pub blocks: Range<usize>,
    /// Whether the last known token is among `tokens`, so that logits are sampled: those of it and
    /// of every draft after it.
    pub samples: bool,
    /// How many of the last `tokens` are drafts: guesses to be verified, not known tokens.
    pub n_drafts: usize,
    /// Output tokens that exist already: the index of the one that would be sampled now.
    pub n_generated: usize,
}

/// The rows of one sequence in a plan: known tokens, then drafts.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// Their tokens.
    pub tokens: &'a [TokenId],
    /// Where drafts branch, which row each follows, [`Rows::ROOT`] being what was computed before;
    /// `None` where each row follows the one before.
    pub parents: Option<&'a [u32]>,
}

impl Rows<'_> {
    /// In place of a parent, for a row that follows what was computed before.
    pub const ROOT: u32 = u32::MAX;

    /// The drafts that follow `row`, the last known one or a draft.
    pub fn drafts_after(&self, row: usize) -> impl Iterator<Item = usize> {
        let is_it = move |next: &usize| match self.parents {
            None => *next == row + 1,
            Some(parents) => parents[*next] as usize == row,
        };
        (row + 1..self.tokens.len()).filter(is_it)
    }

    /// The one of them that is `token`.
    pub fn draft_after(&self, row: usize, token: TokenId) -> Option<usize> {
        self.drafts_after(row).find(|&next| self.tokens[next] == token)
    }
}

/// What came of a plan.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct StepOutput {
    /// New tokens of every sequence whose share had `samples` set, in their order: the drafts that
    /// were accepted, a path from the root, then one more. So there is one at least, and one more than
    /// the longest path at most. The KV of accepted drafts lies where tokens of an unbranched sequence
    /// do, by then.
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
