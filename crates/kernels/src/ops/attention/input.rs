//! The input of attention, and the promises that are checked before any page is read.

use std::ops::Range;

use crate::ops::kv::{KvShape, StridedRows};

/// One sequence's part of a step: new rows, and the pages that hold it.
///
/// ```text
/// positions  0 ........ first_position .. first_position + rows.len()
///            |  in the cache before  |  new rows, already stored   |
///            |---- block_table[0] ----|- block_table[1] -|- ...
/// ```
#[derive(Clone, Debug)]
pub struct AttentionSeq<'a> {
    /// Its rows in the queries and in the output.
    pub rows: Range<usize>,
    /// Position of the first of these rows: how many tokens were computed before.
    pub first_position: usize,
    /// Blocks of the sequence in order; those that the new rows fill are included.
    pub block_table: &'a [u32],
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
    /// A row sees what is before `first_position`, its ancestors and itself, and gets the bits that
    /// it would get in a chain of just these: the tokens of a path count as lying at
    /// `first_position + depth`, and a window counts back from there. The caller rotates queries
    /// and keys by the same positions.
    pub tree: Option<&'a [u32]>,
}

impl AttentionSeq<'_> {
    /// The parent of a draft that follows the last committed token.
    pub const ROOT: u32 = u32::MAX;
}

/// A bias of every query head by the distance from the query to the key (Raffel et al., 2020).
///
/// ```text
/// key position - query position    <= -reach  ..  -1   0   1  ..  >= reach
/// entry of a head                      0      ..          reach      2 · reach
/// ```
#[derive(Clone, Copy, Debug)]
pub struct DistanceBias<'a> {
    /// `[n_heads, 2 * reach + 1]`.
    pub values: &'a [f32],
    /// Distance from which on the bias is the same.
    pub reach: usize,
}

impl<'a> DistanceBias<'a> {
    /// Entries of a head.
    pub(super) fn width(&self) -> usize {
        2 * self.reach + 1
    }

    /// The biases of the heads in `heads` alone.
    pub(super) fn of_heads(&self, heads: Range<usize>) -> Self {
        let width = self.width();
        let values: &'a [f32] = self.values;
        Self { values: &values[heads.start * width..heads.end * width], ..*self }
    }
}

/// Queries of one layer, and the positions that they may see.
#[derive(Clone, Debug)]
pub struct AttentionInput<'a> {
    /// Queries `[m, n_heads * key_dim]`, already rotated; head `h` reads KV head
    /// `h / (n_heads / n_kv_heads)`.
    pub q: StridedRows<'a>,
    /// Query heads per row, a multiple of the KV heads.
    pub n_heads: usize,
    /// Sequences, by ascending rows that do not overlap.
    pub sequences: &'a [AttentionSeq<'a>],
    /// Factor of every score, usually `1 / sqrt(key_dim)`.
    pub scale: f32,
    /// Most positions that a row sees up to itself, itself included; `None` for all.
    pub window: Option<usize>,
    /// Most positions after itself that a row sees, as far as its sequence goes: none in a decoder,
    /// `usize::MAX` in an encoder. Not with trees, slopes or segments.
    pub ahead: usize,
    /// Length of a segment of positions; a row sees only positions of its own segment. `None` for
    /// one segment.
    pub segment: Option<usize>,
    /// `cap · tanh(score / cap)` after scaling.
    pub softcap: Option<f32>,
    /// One slope per query head: `slope · (key position - query position)` is added to each score
    /// after scaling, before the cap (ALiBi).
    pub slopes: Option<&'a [f32]>,
    /// A bias by distance, added to each score where a slope would be.
    pub bias: Option<DistanceBias<'a>>,
    /// One logit per query head that takes part in the softmax of each row like a position with
    /// the value zero, neither scaled nor capped. In every window.
    pub sinks: Option<&'a [f32]>,
}

/// First position that the row at position `end - 1` sees.
#[inline(always)]
pub(super) fn first_seen(window: Option<usize>, segment: Option<usize>, end: usize) -> usize {
    let by_window = window.map_or(0, |window| end.saturating_sub(window));
    let by_segment = segment.map_or(0, |n| end.saturating_sub(1) / n * n);
    by_window.max(by_segment)
}

impl AttentionInput<'_> {
    /// One after the last position that the row at position `own_end - 1` of `sequence` sees.
    pub(super) fn seen_end(&self, sequence: &AttentionSeq<'_>, own_end: usize) -> usize {
        own_end.saturating_add(self.ahead).min(sequence.first_position + sequence.rows.len())
    }

    /// Asserts every promise that the kernels rely on.
    pub(super) fn check(&self, kv: &KvShape, n_out: usize) {
        let width = self.n_heads * kv.value_dim;
        assert!(width > 0, "invariant: rows have heads");
        assert_eq!(self.n_heads % kv.n_kv_heads, 0, "invariant: heads are whole groups");
        assert_eq!(n_out % width, 0, "invariant: whole rows of out");
        if let Some(sinks) = self.sinks {
            assert_eq!(sinks.len(), self.n_heads, "invariant: one sink per query head");
        }
        assert_ne!(self.segment, Some(0), "invariant: segments have positions");
        if let Some(slopes) = self.slopes {
            assert_eq!(slopes.len(), self.n_heads, "invariant: one slope per query head");
        }
        if let Some(bias) = &self.bias {
            let n = self.n_heads * bias.width();
            assert_eq!(bias.values.len(), n, "invariant: a bias per query head and distance");
        }
        assert!(self.ahead == 0 || self.slopes.is_none(), "invariant: no slopes ahead of a row");
        assert!(self.ahead == 0 || self.segment.is_none(), "invariant: no row ahead in a segment");
        let mut row = 0;
        for seq in self.sequences {
            assert!(self.ahead == 0 || seq.tree.is_none(), "invariant: no row ahead in a tree");
            assert!(seq.rows.start >= row, "invariant: rows of sequences ascend, none shared");
            assert!(seq.rows.end >= seq.rows.start, "invariant: rows of a sequence ascend");
            row = seq.rows.end;
            if let Some(parents) = seq.tree {
                assert_eq!(parents.len(), seq.rows.len(), "invariant: one parent per row");
                for (row, &parent) in parents.iter().enumerate() {
                    let is_before = parent == AttentionSeq::ROOT || (parent as usize) < row;
                    assert!(is_before, "invariant: row {row} follows its parent {parent}");
                }
            }
            let n_tokens = seq.first_position.checked_add(seq.rows.len());
            let n_tokens = n_tokens.expect("invariant: positions are counted in a word");
            let n_needed = n_tokens.div_ceil(kv.block_size);
            let n_given = seq.block_table.len();
            assert!(n_needed <= n_given, "invariant: {n_tokens} tokens in {n_given} blocks");
            for &block in &seq.block_table[..n_needed] {
                let n_blocks = kv.n_blocks;
                assert!((block as usize) < n_blocks, "invariant: block {block} of {n_blocks}");
            }
        }
        assert!(row * width <= n_out, "invariant: out has row {row}");
    }
}
