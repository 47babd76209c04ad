//! Rows of a call in blocks that are computed together.
//!
//! ```text
//! sequence    |row|row|row|row|row|row|row|       blocks of flat rows / heads rows, at least one
//!             |-- block --|-- block --|...|
//! KV head     |head|head|head|head|head|head|        parts of up to 16 heads
//! block       chunks first_chunk .. + n_chunks       what any of its rows sees
//! chunks      |--- span ---|--- span ---|chunk|chunk|...     in stretches, each of one partial result
//! ```
//!
//! The last spans of a block are cut into chunks, so that threads end at about the same time.

use std::ops::Range;

use super::input::{AttentionInput, first_seen};
use super::tree::Tree;
use super::{CHUNK, SPAN};

/// Flat rows (rows x heads) that an item has room for, at least; and in steps of which it has more.
pub(super) const FLAT_ROWS: usize = 64;
/// Most heads of an item.
const HEADS: usize = 16;

/// The heads of a call in parts of KV heads that are computed together.
#[derive(Clone, Copy)]
pub(super) struct HeadParts {
    /// Query heads of a KV head.
    group: usize,
    /// Parts of a KV head.
    n_parts: usize,
    /// Query heads of a part; the last may have fewer.
    pub(super) most: usize,
    /// Parts of all KV heads.
    pub(super) n: usize,
}

/// Heads of one item.
#[derive(Clone, Copy)]
pub(super) struct Heads {
    pub(super) kv_head: usize,
    /// First query head.
    pub(super) first: usize,
    /// Query heads.
    pub(super) n: usize,
}

impl HeadParts {
    pub(super) fn new(group: usize, n_kv_heads: usize) -> Self {
        let n_parts = group.div_ceil(HEADS);
        let most = group.div_ceil(n_parts);
        // For example, 16 x 16 + 1 heads in even parts would leave the last part empty.
        let n_parts = group.div_ceil(most);
        Self { group, n_parts, most, n: n_parts * n_kv_heads }
    }

    /// Part `idx`.
    pub(super) fn part(&self, idx: usize) -> Heads {
        let (kv_head, part) = (idx / self.n_parts, idx % self.n_parts);
        let first = part * self.most;
        let n = self.most.min(self.group - first);
        Heads { kv_head, first: kv_head * self.group + first, n }
    }
}

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
    /// Spans at the beginning that are a stretch each; after them each chunk is one.
    n_spans: usize,
    /// Partials of all row blocks before, in (part of the heads, stretch) pairs.
    pub(super) first_partial: usize,
    /// Where the depths of the sequence's rows begin, if they are a tree.
    pub(super) first_depth: usize,
}

impl RowBlock {
    /// Stretches of chunks.
    pub(super) fn n_stretches(&self) -> usize {
        self.n_spans + self.n_chunks - self.chunks_of(self.n_spans)
    }

    /// The chunks of a stretch, counted from the block's first.
    pub(super) fn stretch(&self, idx: usize) -> Range<usize> {
        if idx < self.n_spans {
            return self.chunks_of(idx)..self.chunks_of(idx + 1);
        }
        let chunk = self.chunks_of(self.n_spans) + idx - self.n_spans;
        chunk..chunk + 1
    }

    /// Whether this chunk, counted from the block's first, is the first of its span that any row sees.
    pub(super) fn begins_span(&self, chunk: usize) -> bool {
        chunk == 0 || (self.first_chunk + chunk).is_multiple_of(SPAN)
    }

    /// Chunks of the first `n_spans` spans. Spans are fixed to multiples of [`SPAN`] chunks.
    fn chunks_of(&self, n_spans: usize) -> usize {
        let end = (self.first_chunk / SPAN + n_spans) * SPAN;
        end.saturating_sub(self.first_chunk).min(self.n_chunks)
    }
}

/// How the rows of a call are cut; its memory is kept from call to call.
#[derive(Default)]
pub(super) struct Cut {
    pub(super) blocks: Vec<RowBlock>,
    /// Depths of the rows of all trees.
    pub(super) depths: Vec<u32>,
    /// Pairs of a part of the heads and a chunk.
    pub(super) n_chunks: usize,
    /// Pairs of a part of the heads and a stretch.
    pub(super) n_partials: usize,
}

impl Cut {
    /// Cuts the rows of all sequences into blocks of up to `flat_rows` flat rows (rows x heads),
    /// but of at least one row; and their chunks into stretches, for `n_threads` threads.
    pub(super) fn rows(
        &mut self,
        input: &AttentionInput<'_>,
        heads: &HeadParts,
        (flat_rows, n_threads): (usize, usize),
    ) {
        let per_block = (flat_rows / heads.most).max(1);
        self.blocks.clear();
        self.depths.clear();
        (self.n_chunks, self.n_partials) = (0, 0);
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
                // Positions that the first and the last row count as; in a tree those of the
                // shallowest and the deepest row.
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
                let end = input.seen_end(sequence, last + 1);
                let n_chunks = end.div_ceil(CHUNK).saturating_sub(first_chunk);
                let n_spans = (first_chunk + n_chunks).div_ceil(SPAN) - first_chunk / SPAN;
                let block = RowBlock {
                    seq,
                    row,
                    n_rows,
                    position,
                    first_chunk,
                    n_chunks,
                    n_spans: n_spans.saturating_sub(n_threads),
                    first_partial: self.n_partials,
                    first_depth,
                };
                self.n_chunks += n_chunks * heads.n;
                self.n_partials += block.n_stretches() * heads.n;
                self.blocks.push(block);
                row += n_rows;
            }
        }
    }
}
