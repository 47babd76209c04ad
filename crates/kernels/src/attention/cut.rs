//! Rows of a call in blocks that are computed together.
//!
//! ```text
//! sequence    |row|row|row|row|row|row|row|          blocks of 16 / group rows, at least one
//!             |-- block --|-- block --|...|
//! block       chunks first_chunk .. + n_chunks       what any of its rows sees
//! ```

use super::CHUNK;
use super::input::{AttentionInput, first_seen};
use super::tree::Tree;

/// Flat rows (rows x heads of a group) of one item, unless the group alone has more.
const FLAT_ROWS: usize = 16;

/// Consecutive rows of one sequence.
pub(super) struct RowBlock {
    pub(super) seq: usize,
    /// First row, among all rows of the call.
    pub(super) row: usize,
    pub(super) n_rows: usize,
    /// Position of the first row.
    pub(super) position: usize,
    /// First chunk that any row sees.
    pub(super) first_chunk: usize,
    pub(super) n_chunks: usize,
    /// Partials of all row blocks before, in (KV head, chunk) pairs.
    pub(super) first_partial: usize,
    /// Where the depths of the sequence's rows begin, if they are a tree.
    pub(super) first_depth: usize,
}

/// How the rows of a call are cut; its memory is kept from call to call.
#[derive(Default)]
pub(super) struct Cut {
    pub(super) blocks: Vec<RowBlock>,
    /// Depths of the rows of all trees.
    pub(super) depths: Vec<u32>,
    pub(super) n_partials: usize,
}

impl Cut {
    /// Cuts the rows of all sequences.
    pub(super) fn rows(&mut self, input: &AttentionInput<'_>, group: usize, n_kv_heads: usize) {
        let per_block = (FLAT_ROWS / group).max(1);
        self.blocks.clear();
        self.depths.clear();
        self.n_partials = 0;
        for (seq, sequence) in input.sequences.iter().enumerate() {
            let first_depth = self.depths.len();
            if let Some(parents) = sequence.tree {
                Tree::push_depths(parents, &mut self.depths);
            }
            let mut row = sequence.rows.start;
            while row < sequence.rows.end {
                let n_rows = per_block.min(sequence.rows.end - row);
                let within = row - sequence.rows.start;
                let position = sequence.first_position + within;
                // What the first and the last row count as; in a tree, the shallowest and deepest.
                let (mut first, mut last) = (position, position + n_rows - 1);
                if sequence.tree.is_some() {
                    let depths = &self.depths[first_depth + within..][..n_rows];
                    let at = |depth: Option<&u32>| {
                        sequence.first_position + depth.map_or(0, |&depth| depth as usize)
                    };
                    (first, last) = (at(depths.iter().min()), at(depths.iter().max()));
                }
                let first_seen = first_seen(input.window, input.segment, first + 1);
                let first_chunk = first_seen / CHUNK;
                let n_chunks = (last + 1).div_ceil(CHUNK).saturating_sub(first_chunk);
                self.blocks.push(RowBlock {
                    seq,
                    row,
                    n_rows,
                    position,
                    first_chunk,
                    n_chunks,
                    first_partial: self.n_partials,
                    first_depth,
                });
                self.n_partials += n_chunks * n_kv_heads;
                row += n_rows;
            }
        }
    }
}
