//! The three values that cross the border of the scheduler each step: plan, outcome and news.
//!
//! Each is a few flat vectors, however many sequences there are. The caller owns all three and
//! passes them in again at every step, so that their memory is kept:
//!
//! ```text
//! sequences  [ req-4      | req-7        | req-9 ]
//! tokens     [ t          | t t t t t    | t     ]   each sequence names its range
//! blocks     [ 7 2 9      | 3 5          | 8 1 6 ]   of both
//! ```

use crate::{BlockId, LaneId, SnapshotId, StateCopy, StepLoad};
use pelton_base::{FinishReason, RequestId, TokenId, Usage};
use std::ops::Range;

/// One step's work: which tokens of which sequences to compute, and where their KV goes.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct SchedulerOutput {
    /// Decode rows first, then prefill chunks.
    pub sequences: Vec<ScheduledSequence>,
    /// The tokens to compute, one sequence after the other.
    pub tokens: Vec<TokenId>,
    /// The parents of the rows of those sequences whose drafts branch, one after the other.
    pub parents: Vec<u32>,
    /// The block tables of all sequences, one after the other.
    pub blocks: Vec<BlockId>,
    /// Copies between device and host to start. They depend neither on each other nor on the rest
    /// of the plan, and may take many steps: [`StepOutput::transferred`] reports each when it is
    /// over.
    pub transfers: Vec<Transfer>,
    /// The blocks of all transfers, one transfer after the other: on the device, and on the host.
    pub moved: Vec<(BlockId, HostBlockId)>,
    /// Blocks to copy before the plan is computed, from the first to the second, so that a sequence
    /// can write where other sequences read.
    pub copies: Vec<(BlockId, BlockId)>,
    /// Copies between lanes and snapshots, to carry out one after the other before the plan is
    /// computed, and also where its shares fail. A plan without shares has none: they wait for the
    /// next one with shares.
    pub state_copies: Vec<StateCopy>,
    /// The states to keep while the plan is computed: each border, and the snapshot that takes the
    /// state at it. Each sequence names its range, ascending.
    pub saves: Vec<(usize, SnapshotId)>,
    /// Requests that gave up their blocks to make this plan possible.
    pub preempted: Vec<RequestId>,
    /// The work that the plan asks of the machine.
    pub load: StepLoad,
}

/// Index of one KV block in the swap store of the host.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct HostBlockId(pub u32);

/// Names one transfer of KV; never reused by a scheduler.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct TransferId(pub u64);

impl std::fmt::Display for TransferId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "transfer {}", self.0)
    }
}

/// The way that KV takes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Direction {
    /// From the device to the host.
    Out,
    /// From the host to the device.
    In,
}

/// KV of one sequence to copy between the device and the host.
///
/// Nothing else writes its blocks, on either end, until it is reported; nothing reads those that it
/// writes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Transfer {
    /// The ticket under which its end is reported.
    pub id: TransferId,
    /// The end that it reads from and the end that it writes to.
    pub direction: Direction,
    /// Its range of the plan's moved blocks.
    pub moved: Range<usize>,
}

impl SchedulerOutput {
    /// The blocks of one of its transfers: on the device, and on the host.
    pub fn moved_by(&self, transfer: &Transfer) -> &[(BlockId, HostBlockId)] {
        &self.moved[transfer.moved.clone()]
    }

    /// Number of blocks that its transfers copy in one direction.
    pub fn n_moved(&self, direction: Direction) -> usize {
        let transfers = self.transfers.iter().filter(|transfer| transfer.direction == direction);
        transfers.map(|transfer| transfer.moved.len()).sum()
    }

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

    /// The states to keep while one of its sequences is computed: each border, and the snapshot
    /// that takes the state at it.
    pub fn saves_of(&self, share: &ScheduledSequence) -> &[(usize, SnapshotId)] {
        share.lane.as_ref().map_or(&[], |lane| &self.saves[lane.saves.clone()])
    }

    /// Whether there is nothing to compute.
    pub fn is_empty(&self) -> bool {
        self.sequences.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        let Self {
            sequences,
            tokens,
            parents,
            blocks,
            transfers,
            moved,
            copies,
            state_copies,
            saves,
            preempted,
            load,
        } = self;
        sequences.clear();
        tokens.clear();
        parents.clear();
        blocks.clear();
        transfers.clear();
        moved.clear();
        copies.clear();
        state_copies.clear();
        saves.clear();
        preempted.clear();
        *load = StepLoad::default();
    }
}

/// One sequence's share of a step.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ScheduledSequence {
    /// The request that the tokens belong to.
    pub id: RequestId,
    /// Its range of the plan's tokens; never empty.
    pub tokens: Range<usize>,
    /// Its range of the plan's parents; empty where each row follows the one before.
    pub parents: Range<usize>,
    /// Position of the first of them; KV exists for every position before it.
    pub first_position: usize,
    /// Its block table: a range of the plan's blocks.
    pub blocks: Range<usize>,
    /// Whether the last known token is among `tokens`, so that logits are sampled: those of it and
    /// of every draft after it.
    pub samples: bool,
    /// How many of the last `tokens` are drafts: guesses to be verified, not known tokens.
    pub n_drafts: usize,
    /// Tokens at the beginning of the sequence that an encoder reads.
    pub n_source: usize,
    /// Output tokens that exist already: the index of the one that would be sampled now.
    pub n_generated: usize,
    /// Its lane; `None` for a model without recurrent layers.
    pub lane: Option<LaneShare>,
}

/// The lane of a sequence in a step.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LaneShare {
    /// The lane.
    pub lane: LaneId,
    /// Border of the lane before this step. At border 0 the state is all zeros, whatever the lane
    /// held before.
    pub border: usize,
    /// Its range of the plan's saves: borders beyond that of the lane, at positions of this share.
    pub saves: Range<usize>,
}

/// The rows of one sequence in a plan: known tokens, then drafts.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// Their tokens.
    pub tokens: &'a [TokenId],
    /// Where drafts branch: the row that each row follows, or [`Rows::ROOT`] for the tokens that
    /// were computed before. `None` where each row follows the one before.
    pub parents: Option<&'a [u32]>,
}

impl Rows<'_> {
    /// The parent of a row that follows the tokens that were computed before.
    pub const ROOT: u32 = u32::MAX;

    /// The drafts that follow `row`, the last known one or a draft.
    pub fn drafts_after(&self, row: usize) -> impl Iterator<Item = usize> {
        let is_it = move |next: &usize| match self.parents {
            None => *next == row + 1,
            Some(parents) => parents[*next] as usize == row,
        };
        (row + 1..self.tokens.len()).filter(is_it)
    }

    /// The draft after `row` that is `token`.
    pub fn draft_after(&self, row: usize, token: TokenId) -> Option<usize> {
        self.drafts_after(row).find(|&next| self.tokens[next] == token)
    }
}

/// The outcome of a plan.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct StepOutput {
    /// New tokens of every sequence whose share had `samples` set, in their order: the accepted
    /// drafts, which are a path from the root, then one more token. So there is at least one, and
    /// at most one more than the longest path has drafts. The executor has moved the KV of accepted
    /// drafts to where the tokens of an unbranched sequence lie.
    ///
    /// An answer that does not match the plan (tokens for a share that did not sample, none for
    /// one that did) ends that request with [`FinishReason::Error`] and touches no other.
    pub sampled: Vec<(RequestId, TokenId)>,
    /// Requests of this plan that could not be computed; each ends with [`FinishReason::Error`].
    pub failed: Vec<RequestId>,
    /// Transfers of this plan and of earlier ones that are over since the last outcome.
    pub transferred: Vec<TransferId>,
}

impl StepOutput {
    /// Forgets the step and keeps the memory.
    pub fn clear(&mut self) {
        let Self { sampled, failed, transferred } = self;
        sampled.clear();
        failed.clear();
        transferred.clear();
    }
}

/// The news of each sequence that has any after a step.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct StepUpdates {
    /// In order of arrival.
    pub sequences: Vec<SequenceUpdate>,
    /// The new tokens of all sequences, one sequence after the other.
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
    /// The request that the news is about.
    pub id: RequestId,
    /// Its range of the new tokens, the stop token included; tokens sampled beyond the end are cut
    /// off. Empty where a led request comes to rest
    /// ([`Scheduler::add_led_at`](crate::Scheduler::add_led_at)), and where one fails.
    pub new_tokens: Range<usize>,
    /// The reason for which the sequence ended, if it did. Its blocks are free again.
    pub finish: Option<FinishReason>,
    /// Tokens counted so far.
    pub usage: Usage,
}
