//! One chunk of 256 positions for the query rows of one item.
//!
//! ```text
//! flat rows    row 0 head 0 | row 0 head 1 | .. | row 1 head 0 | ..       q: [n_flat][head_dim]
//! scores       |16 spare|256 positions of the chunk|16 spare|             one such line per flat row
//! key group    [head_dim][16 tokens]     -> 16 scores per fused multiply-add and flat row
//! value        [token][head_dim]         -> 16 elements per fused multiply-add and flat row
//!
//! 1. scores:  for 2 groups x 4 flat rows at a time: acc[r][g] = fma(q[r][d], k[g][d], acc[r][g])
//! 2. softmax: per flat row, over its visible positions [low, high)
//! 3. values:  for 4 flat rows x 64 elements at a time, over the positions of one block:
//!             acc[r][d] = fma(e[r][t], v[t][d], acc[r][d])
//! ```
//!
//! The spare ends take the lanes of a group that begins before the chunk or ends after it, which
//! happens only when the block size is no multiple of 16. Groups ascend, so the padding lanes of a
//! short block are overwritten by the next block; what stays outside `[low, high)` is masked.
//!
//! Rows of a causal prompt end at different positions. A tile of four takes the positions that
//! all four see together and the others row by row, so that no row touches a value it may not see.
//!
//! Per position and KV head: `2 · head_dim` elements loaded once per 16 flat rows, `4 · head_dim`
//! operations per flat row; 6 loads for 8 fused operations in the inner loops (AVX-512).
//!
//! Tried and dropped: accumulators in registers over the whole chunk in step 3 (pages are then
//! read in 256-byte strips, which the prefetchers follow badly).

use std::ops::Range;

use super::CHUNK;
use super::merge::{State, reference};
use crate::kv::{KvElement, KvShape};
use crate::rows::lanes::{LANES, Simd};
use crate::rows::math::{exp, tanh};
use crate::rows::shells;

/// Floats of one line of scores.
pub(super) const SCORE_LINE: usize = LANES + CHUNK + LANES;

/// One chunk of one item.
pub(super) struct Chunk<'a, T> {
    /// Queries `[n_flat, head_dim]`, flat rows being (row, head of the group).
    pub(super) q: &'a [f32],
    /// Heads that share the KV head.
    pub(super) group: usize,
    /// Position of row 0; row `i` is at `position + i`.
    pub(super) position: usize,
    /// First position of the chunk, a multiple of [`CHUNK`].
    pub(super) start: usize,
    /// Most positions that a row sees.
    pub(super) window: Option<usize>,
    pub(super) scale: f32,
    pub(super) softcap: Option<f32>,
    /// The layer's pages.
    pub(super) pages: &'a [T],
    pub(super) shape: &'a KvShape,
    pub(super) block_table: &'a [u32],
    pub(super) kv_head: usize,
}

impl<T: KvElement> Chunk<'_, T> {
    fn n_flat(&self) -> usize {
        self.q.len() / self.shape.head_dim
    }

    /// Positions that flat row `flat` sees, counted from the start of the chunk; `low <= high`.
    #[inline(always)]
    fn visible(&self, flat: usize) -> (usize, usize) {
        let end = self.position + flat / self.group + 1;
        let first = self.window.map_or(0, |window| end.saturating_sub(window));
        let high = end.saturating_sub(self.start).min(CHUNK);
        (first.saturating_sub(self.start).min(high), high)
    }

    /// The key group that holds `position`, the column of its lane 0 in a line of scores, and the
    /// first position after it.
    #[inline(always)]
    fn key_group(&self, position: usize) -> (&[[T; LANES]], usize, usize) {
        let shape = self.shape;
        let (block, place) = (position / shape.block_size, position % shape.block_size);
        let group = place / LANES;
        let at = self.block_table[block] as usize * shape.block_elements()
            + self.kv_head * shape.key_elements()
            + group * LANES * shape.head_dim;
        let keys = self.pages[at..at + LANES * shape.head_dim].as_chunks::<LANES>().0;
        let first = block * shape.block_size + group * LANES;
        let next = (first + LANES).min((block + 1) * shape.block_size);
        // `first` is at most 15 before the chunk, and never after its last position.
        (keys, first + LANES - self.start, next)
    }

    /// The values of the positions from `position` to the end of its block or to `end`, and the
    /// first position after them.
    #[inline(always)]
    fn values(&self, position: usize, end: usize) -> (&[T], usize) {
        let shape = self.shape;
        let (block, place) = (position / shape.block_size, position % shape.block_size);
        let next = end.min((block + 1) * shape.block_size);
        let at = self.block_table[block] as usize * shape.block_elements()
            + shape.n_kv_heads * shape.key_elements()
            + self.kv_head * shape.value_elements()
            + place * shape.padded_dim();
        (&self.pages[at..at + (next - position) * shape.padded_dim()], next)
    }
}

/// Computes the chunk into `out`; `scores` is scratch of `n_flat` lines.
#[inline(always)]
fn chunk<S: Simd, T: KvElement>(
    s: S,
    chunk: &Chunk<'_, T>,
    scores: &mut [f32],
    out: &mut State<'_>,
) {
    out.clear();
    let n_flat = chunk.n_flat();
    // Positions that any row sees: rows ascend, so do both ends of what they see.
    let (mut low, mut high) = (CHUNK, 0);
    for flat in (0..n_flat).step_by(chunk.group) {
        let (row_low, row_high) = chunk.visible(flat);
        if row_low < row_high {
            low = low.min(row_low);
            high = high.max(row_high);
        }
    }
    if low >= high {
        return;
    }
    score(s, chunk, scores, chunk.start + low..chunk.start + high);
    for flat in 0..n_flat {
        let line = &mut scores[flat * SCORE_LINE..(flat + 1) * SCORE_LINE];
        let (low, high) = chunk.visible(flat);
        (out.max[flat], out.sum[flat]) = softmax(s, chunk, line, low, high);
    }
    let padded = chunk.shape.padded_dim();
    let mut flat = 0;
    while flat + 4 <= n_flat {
        let acc = &mut out.acc[flat * padded..(flat + 4) * padded];
        weigh_tile::<S, T, 4>(s, chunk, flat, &scores[flat * SCORE_LINE..], acc);
        flat += 4;
    }
    if flat + 2 <= n_flat {
        let acc = &mut out.acc[flat * padded..(flat + 2) * padded];
        weigh_tile::<S, T, 2>(s, chunk, flat, &scores[flat * SCORE_LINE..], acc);
        flat += 2;
    }
    if flat < n_flat {
        let acc = &mut out.acc[flat * padded..(flat + 1) * padded];
        weigh_tile::<S, T, 1>(s, chunk, flat, &scores[flat * SCORE_LINE..], acc);
    }
}

/// Scores of all flat rows for the groups that hold `positions`.
#[inline(always)]
fn score<S: Simd, T: KvElement>(
    s: S,
    chunk: &Chunk<'_, T>,
    scores: &mut [f32],
    positions: Range<usize>,
) {
    let mut position = positions.start;
    while position < positions.end {
        let (keys_0, column_0, next) = chunk.key_group(position);
        position = next;
        if position < positions.end {
            let (keys_1, column_1, next) = chunk.key_group(position);
            position = next;
            let (keys, columns) = ([keys_0, keys_1], [column_0, column_1]);
            if S::IS_WIDE {
                score_rows(s, chunk, scores, keys, columns);
            } else {
                score_rows(s, chunk, scores, [keys_0], [column_0]);
                score_rows(s, chunk, scores, [keys_1], [column_1]);
            }
        } else {
            score_rows(s, chunk, scores, [keys_0], [column_0]);
        }
    }
}

/// Scores of all flat rows for `G` groups, four rows at a time.
#[inline(always)]
fn score_rows<S: Simd, T: KvElement, const G: usize>(
    s: S,
    chunk: &Chunk<'_, T>,
    scores: &mut [f32],
    keys: [&[[T; LANES]]; G],
    columns: [usize; G],
) {
    let n_flat = chunk.n_flat();
    let mut flat = 0;
    while flat + 4 <= n_flat {
        score_tile::<S, T, 4, G>(s, chunk, flat, scores, keys, columns);
        flat += 4;
    }
    if flat + 2 <= n_flat {
        score_tile::<S, T, 2, G>(s, chunk, flat, scores, keys, columns);
        flat += 2;
    }
    if flat < n_flat {
        score_tile::<S, T, 1, G>(s, chunk, flat, scores, keys, columns);
    }
}

/// Scores of `R` flat rows for `G` groups.
#[inline(always)]
fn score_tile<S: Simd, T: KvElement, const R: usize, const G: usize>(
    s: S,
    chunk: &Chunk<'_, T>,
    flat: usize,
    scores: &mut [f32],
    keys: [&[[T; LANES]]; G],
    columns: [usize; G],
) {
    let dim = chunk.shape.head_dim;
    let mut q: [&[f32]; R] = [&[]; R];
    for (r, q) in q.iter_mut().enumerate() {
        *q = &chunk.q[(flat + r) * dim..(flat + r + 1) * dim];
    }
    for keys in keys {
        assert_eq!(keys.len(), dim, "invariant: a key group has one line per dimension");
    }
    let mut acc = [[s.splat(0.0); G]; R];
    for d in 0..dim {
        let mut k = [s.splat(0.0); G];
        for g in 0..G {
            k[g] = T::load(s, &keys[g][d]);
        }
        for r in 0..R {
            let q = s.splat(q[r][d]);
            for g in 0..G {
                acc[r][g] = s.fma(q, k[g], acc[r][g]);
            }
        }
    }
    let scale = s.splat(chunk.scale);
    for r in 0..R {
        let line = &mut scores[(flat + r) * SCORE_LINE..(flat + r + 1) * SCORE_LINE];
        for g in 0..G {
            let score = s.mul(acc[r][g], scale);
            let lanes = line[columns[g]..].first_chunk_mut();
            s.store(score, lanes.expect("invariant: a line has room for every group"));
        }
    }
}

/// Turns the scores `[low, high)` of a line into `exp(score - max)`, and returns max and sum.
#[inline(always)]
fn softmax<S: Simd, T: KvElement>(
    s: S,
    chunk: &Chunk<'_, T>,
    line: &mut [f32],
    low: usize,
    high: usize,
) -> (f32, f32) {
    if low >= high {
        return (f32::NEG_INFINITY, 0.0);
    }
    // Whole lanes of the chunk, what is not visible in them masked.
    let (first, last) = (low / LANES * LANES, high.next_multiple_of(LANES));
    let line = &mut line[LANES + first..LANES + last];
    line[..low - first].fill(f32::NEG_INFINITY);
    line[high - first..].fill(f32::NEG_INFINITY);
    let blocks = line.as_chunks_mut::<LANES>().0;
    if let Some(cap) = chunk.softcap {
        let (cap, inverse) = (s.splat(cap), s.splat(1.0 / cap));
        for block in &mut *blocks {
            s.store(s.mul(cap, tanh(s, s.mul(s.load(block), inverse))), block);
        }
        // The cap made the masked ones finite.
        let line = blocks.as_flattened_mut();
        line[..low - first].fill(f32::NEG_INFINITY);
        line[high - first..].fill(f32::NEG_INFINITY);
    }
    let mut max = s.splat(f32::NEG_INFINITY);
    for block in &*blocks {
        // A NaN does not enter the maximum; it enters the sum below.
        max = s.max(s.load(block), max);
    }
    let max = s.largest(max);
    let from = s.splat(reference(max));
    let mut sum = s.splat(0.0);
    for block in blocks {
        let e = exp(s, s.sub(s.load(block), from));
        s.store(e, block);
        sum = s.add(sum, e);
    }
    (max, s.sum(sum))
}

/// Adds the weighted values of `R` flat rows to `acc` `[R, padded]`; `scores` begins at `flat`.
#[inline(always)]
fn weigh_tile<S: Simd, T: KvElement, const R: usize>(
    s: S,
    chunk: &Chunk<'_, T>,
    flat: usize,
    scores: &[f32],
    acc: &mut [f32],
) {
    let padded = chunk.shape.padded_dim();
    let mut ends = [(0, 0); R];
    let (mut low, mut high) = (0, CHUNK);
    for (r, ends) in ends.iter_mut().enumerate() {
        *ends = chunk.visible(flat + r);
        low = low.max(ends.0);
        high = high.min(ends.1);
    }
    // What all rows see is `[low, high)`; it may be empty, and then every row goes alone.
    let high = high.max(low);
    for (r, &(row_low, row_high)) in ends.iter().enumerate() {
        let line = &scores[r * SCORE_LINE..(r + 1) * SCORE_LINE];
        let acc = &mut acc[r * padded..(r + 1) * padded];
        weigh::<S, T, 1>(s, chunk, line, acc, row_low..row_high.min(low));
    }
    if ends.iter().all(|&(row_low, row_high)| row_low <= low && row_high >= high) {
        weigh::<S, T, R>(s, chunk, scores, acc, low..high);
    }
    for (r, &(row_low, row_high)) in ends.iter().enumerate() {
        let line = &scores[r * SCORE_LINE..(r + 1) * SCORE_LINE];
        let acc = &mut acc[r * padded..(r + 1) * padded];
        weigh::<S, T, 1>(s, chunk, line, acc, row_low.max(high)..row_high);
    }
}

/// Adds the weighted values of `visible` (counted from the chunk's start) for `R` rows.
#[inline(always)]
fn weigh<S: Simd, T: KvElement, const R: usize>(
    s: S,
    chunk: &Chunk<'_, T>,
    scores: &[f32],
    acc: &mut [f32],
    visible: Range<usize>,
) {
    let padded = chunk.shape.padded_dim();
    let end = chunk.start + visible.end;
    let mut position = chunk.start + visible.start;
    while position < end {
        let (values, next) = chunk.values(position, end);
        let column = LANES + position - chunk.start;
        let mut weights: [&[f32]; R] = [&[]; R];
        for (r, weights) in weights.iter_mut().enumerate() {
            *weights = &scores[r * SCORE_LINE + column..][..next - position];
        }
        let values = values.as_chunks::<LANES>().0;
        let n_vectors = padded / LANES;
        let mut first = 0;
        if S::IS_WIDE || R < 4 {
            while first + 4 <= n_vectors {
                weigh_vectors::<S, T, R, 4>(s, weights, values, acc, first, n_vectors);
                first += 4;
            }
        }
        while first < n_vectors {
            weigh_vectors::<S, T, R, 1>(s, weights, values, acc, first, n_vectors);
            first += 1;
        }
        position = next;
    }
}

/// Sixteen times `V` elements of `R` rows over the positions of `weights`.
#[inline(always)]
fn weigh_vectors<S: Simd, T: KvElement, const R: usize, const V: usize>(
    s: S,
    weights: [&[f32]; R],
    values: &[[T; LANES]],
    acc: &mut [f32],
    first: usize,
    n_vectors: usize,
) {
    let acc = acc.as_chunks_mut::<LANES>().0;
    let mut sums = [[s.splat(0.0); V]; R];
    for r in 0..R {
        for v in 0..V {
            sums[r][v] = s.load(&acc[r * n_vectors + first + v]);
        }
    }
    for (t, line) in values.chunks_exact(n_vectors).enumerate() {
        let line = &line[first..first + V];
        let mut value = [s.splat(0.0); V];
        for v in 0..V {
            value[v] = T::load(s, &line[v]);
        }
        for r in 0..R {
            let weight = s.splat(weights[r][t]);
            for v in 0..V {
                sums[r][v] = s.fma(weight, value[v], sums[r][v]);
            }
        }
    }
    for r in 0..R {
        for v in 0..V {
            s.store(sums[r][v], &mut acc[r * n_vectors + first + v]);
        }
    }
}

#[inline(always)]
fn chunk_f32<S: Simd>(s: S, c: &Chunk<'_, f32>, scores: &mut [f32], out: &mut State<'_>) {
    chunk(s, c, scores, out);
}

#[inline(always)]
fn chunk_bf16<S: Simd>(s: S, c: &Chunk<'_, u16>, scores: &mut [f32], out: &mut State<'_>) {
    chunk(s, c, scores, out);
}

shells! {
    pub(super) mod f32_shells =
        chunk_f32(c: &Chunk<'_, f32>, scores: &mut [f32], out: &mut State<'_>)
}
shells! {
    pub(super) mod bf16_shells =
        chunk_bf16(c: &Chunk<'_, u16>, scores: &mut [f32], out: &mut State<'_>)
}
