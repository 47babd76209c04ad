//! Rows that are a tree of drafts, and the ancestors that each of them sees.
//!
//! ```text
//! KV position   0 .... first_position | row 0 | row 1 | row 2 | row 3 |     where keys lie
//! of row 3      0 .... first_position | row 0 | row 2 | row 3 |             what they count as
//! ```
//!
//! The positions of a row's *path* are not the slots of its keys, so the path is looked up: for
//! each row and chunk the parents are followed from the row towards the root. That is one step per
//! ancestor, negligible beside the dot product with that ancestor.

use std::ops::Range;

use super::CHUNK;
use super::input::AttentionSeq;

/// The tree of an item's sequence.
#[derive(Clone, Copy)]
pub(super) struct Tree<'a> {
    /// Parent of each row of the sequence.
    pub(super) parents: &'a [u32],
    /// Number of ancestors of each row of the sequence.
    pub(super) depths: &'a [u32],
    /// Position of the keys of the sequence's first row.
    pub(super) first_position: usize,
    /// The item's first row, counted from the sequence's.
    pub(super) row: usize,
}

/// The part of a row's path in one chunk: columns, and the rows of the sequence that count there.
pub(super) struct Path {
    /// The item's row that sees it.
    pub(super) row: usize,
    /// Its columns, counted from the chunk's start.
    pub(super) columns: Range<usize>,
    rows: [u32; CHUNK],
    n_rows: usize,
}

impl Tree<'_> {
    /// Appends the depths of the rows of a tree.
    pub(super) fn push_depths(parents: &[u32], depths: &mut Vec<u32>) {
        let first = depths.len();
        for &parent in parents {
            let depth = match parent {
                AttentionSeq::ROOT => 0,
                parent => depths[first + parent as usize] + 1,
            };
            depths.push(depth);
        }
    }

    /// One more than the position that row `row` of the item counts as.
    #[inline(always)]
    pub(super) fn end(&self, row: usize) -> usize {
        self.first_position + self.depths[self.row + row] as usize + 1
    }

    /// The path of row `row` of the item in `columns` of the chunk that begins at `start`: at
    /// least one, none before `first_position` and none after the row's own.
    pub(super) fn path(&self, row: usize, start: usize, columns: Range<usize>) -> Path {
        let (end, n_rows) = (start + columns.end, columns.len());
        let mut path = Path { row, columns, rows: [0; CHUNK], n_rows };
        let mut node = (self.row + row) as u32;
        let mut position = self.end(row) - 1;
        while position >= end {
            node = self.parents[node as usize];
            position -= 1;
        }
        for at in path.rows[..path.n_rows].iter_mut().rev() {
            *at = node;
            // The last row may be a child of the root, and its parent is not used any more.
            node = self.parents[node as usize];
        }
        path
    }
}

impl Path {
    /// The rows, ascending, which is also the order of their positions.
    pub(super) fn rows(&self) -> &[u32] {
        &self.rows[..self.n_rows]
    }
}
