//! States of recurrent layers, as ids: lanes of running sequences, and snapshots that are kept.
//!
//! Some layers of hybrid models keep no KV but a state of fixed size, which every token changes. A
//! state cannot be cut back to fewer tokens. So positions are divided into chunks, and a state is
//! kept only at the *border* of a chunk, which is the position of its first token:
//!
//! ```text
//! positions   0         64        128       192
//!             |  chunk  |  chunk  |  chunk  |  c h u n k ...
//!                                 ▲
//!                                 border of a lane after 150 tokens
//!
//! lane        [ state of tokens 0..128 | rows 128..150 of the open chunk ]
//! snapshot    [ state of tokens 0..64 ]
//! ```
//!
//! A **lane** belongs to one sequence that holds blocks. The device *folds* the open chunk into the
//! state when it computes the first row of the next chunk. So after a step whose last row is at
//! position `r`, the border of the lane is `r / chunk * chunk`. At border 0 the state is all zeros.
//!
//! Rows may be taken back while their chunk is open, and not later. So drafts end with the chunk of the
//! first of them: what is folded is known.
//!
//! A **snapshot** is the state at a border. The prefix cache keeps it beside the blocks up to this
//! border, the swap store keeps it beside KV on the host, and nothing changes it meanwhile.
//!
//! | a lane becomes | by |
//! |---|---|
//! | empty | its first row being at position 0 |
//! | the state that a snapshot keeps | [`StateCopy::Load`] |
//! | the lane of another sequence | [`StateCopy::Fork`] |
//!
//! | a snapshot is filled | by |
//! |---|---|
//! | before a plan is computed, from a lane at rest | [`StateCopy::Save`] |
//! | while a plan is computed, at a border that a sequence passes | [`SchedulerOutput::saves`] |
//!
//! [`SchedulerOutput::saves`]: crate::SchedulerOutput::saves
//!
//! **Architecture invariant:** order protects lanes and snapshots. The copies of a plan are carried out
//! one after the other, then the plan is computed, and only then the next plan begins. So an id is
//! free for others as soon as the last copy that reads it stands in the list: whatever fills it later
//! comes later on the device too. A snapshot that a plan fills while it is computed belongs to its
//! sequence until the outcome is known.
//!
//! **Architecture invariant:** the border of a lane is that of the last outcome. A share that failed, or
//! whose request was aborted meanwhile, leaves a lane of unknown content, and nothing is saved of it.

use std::collections::VecDeque;

/// Index of one lane, in `0..n_lanes`.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct LaneId(pub u32);

/// Index of one snapshot, in `0..n_snapshots`.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SnapshotId(pub u32);

/// The memory for states of recurrent layers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct StateConfig {
    /// Lanes, which are most sequences that hold blocks at once; at least one.
    pub n_lanes: u32,
    /// Snapshots, of the prefix cache and of the swap store together; zero for none.
    pub n_snapshots: u32,
    /// Tokens per chunk; a multiple of the block size.
    pub chunk: usize,
    /// A running prompt is kept every so many tokens, a multiple of the chunk; zero to keep it only
    /// at the last border of the prompt, and where it parts from another one.
    pub every: usize,
    /// Blocks of keys and values that take as much memory as one state: a copy of a state has the
    /// price of so many moved blocks.
    pub n_blocks: u64,
}

impl StateConfig {
    /// The last border that is no later than `position`.
    pub fn border(&self, position: usize) -> usize {
        position / self.chunk * self.chunk
    }

    /// Most drafts after `n_tokens` known tokens. They end with the chunk of the first of them, so
    /// that no draft that may be wrong is folded into the state.
    pub(crate) fn draft_room(&self, n_tokens: usize) -> usize {
        self.chunk - n_tokens % self.chunk
    }

    /// Panics if a size is out of its range.
    pub(crate) fn check(&self, block_size: usize) {
        assert!(self.n_lanes > 0, "n_lanes must be at least 1");
        assert!(self.chunk > 0, "chunk must be at least 1");
        assert!(self.chunk.is_multiple_of(block_size), "chunk must be a multiple of block_size");
        assert!(self.every.is_multiple_of(self.chunk), "every must be a multiple of chunk");
    }
}

/// A copy between lanes and snapshots, before a plan is computed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StateCopy {
    /// Keeps the state of a lane at its border. The rows of its open chunk are not part of it.
    Save {
        /// Read.
        lane: LaneId,
        /// Written.
        snapshot: SnapshotId,
    },
    /// Gives a lane a state that was kept. Its open chunk has no rows.
    Load {
        /// Read.
        snapshot: SnapshotId,
        /// Written.
        lane: LaneId,
    },
    /// Gives a lane the state of another one, and the rows of its open chunk.
    Fork {
        /// Read.
        from: LaneId,
        /// Written.
        to: LaneId,
    },
}

/// A sequence's hold on its lane.
#[derive(Debug)]
#[must_use = "a lane that is dropped instead of released is lost"]
pub(crate) struct Lane {
    pub(crate) id: LaneId,
    /// Tokens that are folded into its state. A plan in flight does not count.
    pub(crate) border: usize,
    chunk: usize,
}

impl Lane {
    /// A lane with the state of the tokens before `border`.
    pub(crate) fn new(id: LaneId, border: usize, chunk: usize) -> Self {
        Self { id, border, chunk }
    }

    /// Notes that a row at this position was computed.
    pub(crate) fn computed(&mut self, position: usize) {
        let border = position / self.chunk * self.chunk;
        assert!(border >= self.border, "a lane goes back from {} to {border}", self.border);
        self.border = border;
    }

    /// Notes that its content is unknown: nothing of it is worth keeping.
    pub(crate) fn spoil(&mut self) {
        self.border = 0;
    }
}

/// The borders at which the state of a prompt is kept while it is computed.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    /// Borders that no plan has reached yet, ascending.
    ahead: VecDeque<usize>,
    /// Borders of the plan in flight, ascending, and the snapshots that it fills.
    pub(crate) taken: Vec<(usize, SnapshotId)>,
}

impl Marks {
    /// Marks every `every` tokens, the last border before `n_paged` tokens, and the last border of
    /// `n_tokens` tokens, as far as they lie beyond `start`.
    ///
    /// The last of `n_tokens` tokens is never found in the cache, because it has to be computed for
    /// the logits after it; so no border behind it is of use.
    pub(crate) fn new(config: &StateConfig, start: usize, n_paged: usize, n_tokens: usize) -> Self {
        let mut marks = Self::default();
        if let Some(n_before) = start.checked_div(config.every) {
            let first = (n_before + 1) * config.every;
            marks.ahead.extend((first..n_tokens).step_by(config.every));
        }
        for border in [config.border(n_paged), config.border(n_tokens - 1)] {
            if border > start {
                marks.add(border);
            }
        }
        marks
    }

    /// Adds a border that no plan has reached yet.
    pub(crate) fn add(&mut self, border: usize) {
        if let Err(idx) = self.ahead.binary_search(&border) {
            self.ahead.insert(idx, border);
        }
    }

    /// Takes out the first border before `end`.
    pub(crate) fn next_before(&mut self, end: usize) -> Option<usize> {
        self.ahead.pop_front_if(|border| *border < end)
    }

    /// Notes that the plan in flight fills a snapshot.
    pub(crate) fn take(&mut self, border: usize, snapshot: SnapshotId) {
        let idx = self.taken.partition_point(|taken| taken.0 < border);
        self.taken.insert(idx, (border, snapshot));
    }

    /// Whether the plan in flight keeps the state at this border.
    pub(crate) fn takes(&self, border: usize) -> bool {
        self.taken.iter().any(|taken| taken.0 == border)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(every: usize) -> StateConfig {
        StateConfig { n_lanes: 1, n_snapshots: 1, chunk: 4, every, n_blocks: 1 }
    }

    /// All marks of a prompt, in the order in which plans reach them.
    fn marks(every: usize, start: usize, n_paged: usize, n_tokens: usize) -> Vec<usize> {
        let mut marks = Marks::new(&config(every), start, n_paged, n_tokens);
        std::iter::from_fn(|| marks.next_before(usize::MAX)).collect()
    }

    #[test]
    fn a_prompt_is_marked_where_another_one_can_go_on() {
        assert_eq!(marks(0, 0, 0, 13), [12], "the last border");
        assert_eq!(marks(0, 0, 0, 12), [8], "the last token is computed in any case");
        assert_eq!(marks(0, 0, 7, 20), [4, 16], "and where the pages end");
        assert_eq!(marks(0, 4, 7, 20), [16], "but where it begins");
        assert_eq!(marks(8, 4, 21, 31), [8, 16, 20, 24, 28]);
        assert_eq!(marks(8, 8, 0, 17), [16], "once");
        assert_eq!(marks(0, 0, 0, 4), [0; 0], "at border 0 there is nothing to keep");
    }

    #[test]
    fn drafts_end_with_the_chunk_of_the_first_of_them() {
        for (n_tokens, room) in [(1, 3), (3, 1), (4, 4), (5, 3), (8, 4)] {
            assert_eq!(config(0).draft_room(n_tokens), room, "after {n_tokens} tokens");
        }
    }

    #[test]
    #[should_panic(expected = "chunk must be a multiple of block_size")]
    fn a_block_that_crosses_a_border_is_refused() {
        config(0).check(3);
    }
}
