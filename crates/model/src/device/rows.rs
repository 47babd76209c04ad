//! The rows of a step: where each stands in its sequence, and where its keys and values go.
//!
//! ```text
//! sequences   | A: rows 0..3        | B: rows 3..4 |
//! row           0     1     2         3
//! position      5     6     7         90           rotation, learned positions, temperature
//! slot          21    22    23        170          where keys and values are stored, per memory group
//! sequence      0     0     0         1
//! adapter       -     -     -         -
//! ```
//!
//! A position and a slot are two things: drafts of a tree share positions and have slots of their
//! own, and memory that drops old tokens moves slots and no positions.
//!
//! A *memory group* is a set of layers whose keys and values share block tables. Layers of one
//! kind of attention need one group; layers with a short window beside layers without one need two,
//! because they keep different tokens.

use std::ops::Range;

use crate::state::Lane;

/// One sequence's part of a step: its new rows, and the pages that hold it.
///
/// ```text
/// positions  0 ........ first_position .. first_position + rows.len()
///            |  in the cache before  |  new rows, stored by this step |
///            |---- table[0] ----|---- table[1] ----|- ...               of each memory group
/// ```
#[derive(Clone, Debug)]
pub struct ForwardSequence<'a> {
    /// Its rows in the step.
    pub rows: Range<usize>,
    /// Tokens of the source that an encoder reads, at its first positions; 0 in models without an
    /// encoder. The decoder's own tokens begin at the next whole block.
    pub n_source: usize,
    /// Position of the first of these rows: how many tokens were computed before.
    pub first_position: usize,
    /// Blocks of the sequence in order, those that the new rows fill included.
    pub block_tables: BlockTables<'a>,
    /// The lane of its states, in models with recurrent layers.
    pub lane: Option<Lane<'a>>,
    /// For rows that are a tree of drafts, the parent of each: the index (in `rows`) of a row
    /// before it, or [`ROOT`](Self::ROOT) for a child of the last committed token. `None` where
    /// each row follows the one before.
    ///
    /// ```text
    /// row          0     1     2     3     4         KV position  first_position + row
    /// parent     ROOT    0     0   ROOT    2
    /// depth        0     1     1     0     2         tree:  0 -> 1, 0 -> 2 -> 4;  3
    /// ```
    ///
    /// A row sees what is before `first_position`, its ancestors and itself, and gets the bits
    /// that it would get in a chain of just these: the tokens of a path count as lying at
    /// `first_position + depth`.
    pub tree: Option<&'a [u32]>,
}

impl ForwardSequence<'_> {
    /// The parent of a draft that follows the last committed token.
    pub const ROOT: u32 = u32::MAX;

    /// The place of its first own token: 0, or the block after those of its source.
    pub fn own_start(&self, block_size: usize) -> usize {
        self.n_source.next_multiple_of(block_size)
    }
}

/// Block tables of one sequence, one for each memory group of layers.
///
/// All tables of a sequence have the same length. A group that has dropped a block keeps an entry in
/// its place, which no layer of the group reads.
#[derive(Clone, Copy, Debug)]
pub struct BlockTables<'a> {
    /// `[n_groups, n_blocks]`.
    blocks: &'a [u32],
    n_groups: usize,
}

impl<'a> BlockTables<'a> {
    /// The table of a model whose layers are all in one group.
    pub fn one(blocks: &'a [u32]) -> Self {
        Self::new(blocks, 1)
    }

    /// Tables of `n_groups` groups, one after the other.
    ///
    /// # Panics
    ///
    /// When the tables do not have the same length.
    pub fn new(blocks: &'a [u32], n_groups: usize) -> Self {
        assert!(n_groups > 0 && blocks.len().is_multiple_of(n_groups), "tables of one length");
        Self { blocks, n_groups }
    }

    /// Number of groups.
    pub fn n_groups(&self) -> usize {
        self.n_groups
    }

    /// The table of one group.
    ///
    /// # Panics
    ///
    /// When there is no such group.
    pub fn group(&self, group: usize) -> &'a [u32] {
        assert!(group < self.n_groups, "invariant: group {group} of {}", self.n_groups);
        let n_blocks = self.blocks.len() / self.n_groups;
        &self.blocks[group * n_blocks..][..n_blocks]
    }

    /// Slot of the token at `place` of the sequence in one group: `block * block_size + offset`.
    ///
    /// # Panics
    ///
    /// When the table is too short, or slots need more than 32 bits.
    pub(crate) fn slot(&self, group: usize, place: usize, block_size: usize) -> u32 {
        let block = self.group(group)[place / block_size] as usize;
        let slot = block * block_size + place % block_size;
        u32::try_from(slot).expect("slots are counted in 32 bits")
    }
}

/// Number of an adapter (LoRA) that a row is computed with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AdapterId(pub u16);

/// The rows of a step, or those of them that were gathered; every array has an entry for each row.
#[derive(Clone, Copy, Debug)]
pub struct StepRows<'a> {
    /// Position of each row among its sequence's own tokens, `[m]`.
    pub positions: &'a [usize],
    /// Index into `sequences` of each row, `[m]`.
    pub sequence_of: &'a [u32],
    /// Adapter of each row, `[m]`. No adapters are loaded yet, so every entry is `None`.
    pub adapters: &'a [Option<AdapterId>],
    /// The sequences of the step; their `rows` number the rows of the whole step.
    pub sequences: &'a [ForwardSequence<'a>],
    /// `[n_groups, m]`.
    slots: &'a [u32],
}

impl<'a> StepRows<'a> {
    /// KV slot of each row in one memory group, `[m]`.
    ///
    /// # Panics
    ///
    /// When there is no such group.
    pub fn slots(&self, group: usize) -> &'a [u32] {
        let m = self.positions.len();
        &self.slots[group * m..][..m]
    }
}

/// The memory of [`StepRows`], kept from step to step.
#[derive(Debug, Default)]
pub(crate) struct RowPlan {
    positions: Vec<usize>,
    sequence_of: Vec<u32>,
    adapters: Vec<Option<AdapterId>>,
    slots: Vec<u32>,
}

impl RowPlan {
    /// Places the rows of these sequences, and checks that the rows follow each other.
    ///
    /// # Panics
    ///
    /// When the rows of a sequence do not follow those of the one before, a block table is too short,
    /// or there are not `n_groups` of them.
    pub(crate) fn place(
        &mut self,
        sequences: &[ForwardSequence<'_>],
        n_groups: usize,
        block_size: usize,
    ) {
        let Self { positions, sequence_of, adapters, slots } = self;
        positions.clear();
        sequence_of.clear();
        slots.clear();
        for (i, sequence) in sequences.iter().enumerate() {
            assert_eq!(sequence.rows.start, positions.len(), "rows follow each other");
            assert_eq!(sequence.block_tables.n_groups(), n_groups, "a table for each group");
            let first_position = sequence.first_position - sequence.own_start(block_size);
            for row in 0..sequence.rows.len() {
                // A draft of a tree lies after the ones before it, but follows its parent.
                positions.push(match sequence.tree.map(|parents| parents[row]) {
                    None => first_position + row,
                    Some(ForwardSequence::ROOT) => first_position,
                    Some(parent) => positions[sequence.rows.start + parent as usize] + 1,
                });
                sequence_of.push(i as u32);
            }
        }
        for group in 0..n_groups {
            slots.extend(sequences.iter().flat_map(|sequence| {
                let places = (sequence.first_position..).take(sequence.rows.len());
                places.map(move |place| sequence.block_tables.slot(group, place, block_size))
            }));
        }
        adapters.clear();
        adapters.resize(positions.len(), None);
    }

    /// Takes the given rows of `all`, in their order.
    pub(crate) fn gather(&mut self, all: &Self, rows: &[usize]) {
        fn take<T: Copy>(out: &mut Vec<T>, from: &[T], rows: &[usize]) {
            out.extend(rows.iter().map(|&row| from[row]));
        }
        self.clear();
        // Any number of the rows may be asked for in the next step.
        self.reserve(all);
        take(&mut self.positions, &all.positions, rows);
        take(&mut self.sequence_of, &all.sequence_of, rows);
        take(&mut self.adapters, &all.adapters, rows);
        for slots in all.slots.chunks(all.positions.len().max(1)) {
            take(&mut self.slots, slots, rows);
        }
    }

    /// The rows, which belong to these sequences.
    pub(crate) fn rows<'a>(&'a self, sequences: &'a [ForwardSequence<'a>]) -> StepRows<'a> {
        let Self { positions, sequence_of, adapters, slots } = self;
        StepRows { positions, sequence_of, adapters, sequences, slots }
    }

    /// Position of each row.
    pub(crate) fn positions(&self) -> &[usize] {
        &self.positions
    }

    fn clear(&mut self) {
        self.positions.clear();
        self.sequence_of.clear();
        self.adapters.clear();
        self.slots.clear();
    }

    /// Makes room for the rows of `other`, in a plan that is empty.
    fn reserve(&mut self, other: &Self) {
        self.positions.reserve(other.positions.len());
        self.sequence_of.reserve(other.sequence_of.len());
        self.adapters.reserve(other.adapters.len());
        self.slots.reserve(other.slots.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_keep_their_places_when_they_are_gathered() {
        // Two sequences and two memory groups; blocks of four tokens.
        let tables = [[7, 1, 2, 9], [3, 4, 5, 6]];
        let sequences = [
            ForwardSequence {
                rows: 0..3,
                n_source: 0,
                first_position: 3,
                block_tables: BlockTables::new(&tables[0], 2),
                lane: None,
                tree: Some(&[ForwardSequence::ROOT, 0, 0]),
            },
            ForwardSequence {
                rows: 3..4,
                n_source: 0,
                first_position: 6,
                block_tables: BlockTables::new(&tables[1], 2),
                lane: None,
                tree: None,
            },
        ];
        let (mut plan, mut kept) = (RowPlan::default(), RowPlan::default());
        plan.place(&sequences, 2, 4);
        let rows = plan.rows(&sequences);
        assert_eq!(rows.positions, [3, 4, 4, 6]);
        assert_eq!(rows.sequence_of, [0, 0, 0, 1]);
        assert_eq!(rows.slots(0), [31, 4, 5, 18]);
        assert_eq!(rows.slots(1), [11, 36, 37, 26]);
        kept.gather(&plan, &[3, 1]);
        let rows = kept.rows(&sequences);
        assert_eq!((rows.positions, rows.sequence_of), (&[6, 4][..], &[1, 0][..]));
        assert_eq!([rows.slots(0), rows.slots(1)], [[18, 4], [26, 36]]);
        assert_eq!(rows.adapters, [None, None]);
    }

    #[test]
    #[should_panic(expected = "a table for each group")]
    fn a_sequence_without_a_table_for_each_group_is_refused() {
        let block_tables = BlockTables::one(&[0]);
        let sequence = ForwardSequence {
            rows: 0..1,
            n_source: 0,
            first_position: 0,
            block_tables,
            lane: None,
            tree: None,
        };
        RowPlan::default().place(&[sequence], 2, 4);
    }
}
