//! Scores of query rows against key groups.
//!
//! ```text
//! key group    [key_dim][16 tokens]      -> 16 scores per fused multiply-add and flat row
//!
//! for 2 groups x 4 flat rows at a time:   acc[r][g] = fma(q[r][d], k[g][d], acc[r][g])   d ascends
//!                                         score = acc · scale                     f32 .. fp8
//!                                         score = (acc · key scale[token]) · scale      int8
//! ```
//! with a slope:                           score = fma(slope, t - p, score)      t, p: positions
//!
//! A lane is a token: its score does not depend on what the other lanes hold, nor on where the line
//! of scores takes it. That is why a key of a draft tree has one score for all rows that see it.

use std::ops::Range;

use super::chunk::{Chunk, SCORE_LINE};
use super::tree::Path;
use crate::kv::KvElement;
use crate::rows::lanes::{LANES, Simd};

/// Keys of up to sixteen tokens of one block.
#[derive(Clone, Copy)]
pub(super) struct KeyGroup<'a, T> {
    /// `[key_dim][16]`.
    pub(super) keys: &'a [[T; LANES]],
    /// One scale per token, where the type has any.
    pub(super) scales: Option<&'a [f32; LANES]>,
    /// Position of lane 0 in the cache.
    pub(super) first: usize,
    /// First position after the group.
    pub(super) next: usize,
}

/// Scores of all flat rows for the groups that hold `positions`, which count where they lie.
#[inline(always)]
pub(super) fn score<S: Simd, T: KvElement>(
    s: S,
    chunk: &Chunk<'_, T>,
    scores: &mut [f32],
    positions: Range<usize>,
) {
    // A group's first token is at most 15 before the chunk, and never after its last position.
    let column = |group: &KeyGroup<'_, T>| group.first + LANES - chunk.start;
    let mut position = positions.start;
    while position < positions.end {
        let group = chunk.key_group(position);
        position = group.next;
        if S::IS_WIDE && position < positions.end {
            let groups = [group, chunk.key_group(position)];
            position = groups[1].next;
            score_rows(s, chunk, scores, groups, [column(&groups[0]), column(&groups[1])]);
        } else {
            score_rows(s, chunk, scores, [group], [column(&group)]);
        }
    }
}

/// Scores of the flat rows of a row for its path.
///
/// The path's nodes ascend, so those of one key group follow each other; the group is computed whole, in the
/// line's spare lanes, and the nodes' lanes are taken out.
#[inline(always)]
pub(super) fn score_path<S: Simd, T: KvElement>(
    s: S,
    chunk: &Chunk<'_, T>,
    scores: &mut [f32],
    path: &Path,
) {
    let Some(tree) = &chunk.tree else { return };
    let flats = path.row * chunk.group..(path.row + 1) * chunk.group;
    let position = |node: u32| tree.first_position + node as usize;
    let (mut nodes, mut column) = (path.rows(), LANES + path.columns.start);
    while let Some(&first) = nodes.first() {
        let group = chunk.key_group(position(first));
        let (here, rest) =
            nodes.split_at(nodes.partition_point(|&node| position(node) < group.next));
        for flat in flats.clone() {
            score_tile::<S, T, 1, 1>(s, chunk, flat, scores, [group], [0]);
            let line = &mut scores[flat * SCORE_LINE..(flat + 1) * SCORE_LINE];
            for (i, &node) in here.iter().enumerate() {
                line[column + i] = line[position(node) - group.first];
            }
        }
        column += here.len();
        nodes = rest;
    }
}

/// Adds the slope times the distance to the scores of `columns`; the query is `distance` columns
/// from the chunk's start. Each score is its own, so the compiler may take as many lanes as it likes.
#[inline(always)]
pub(super) fn add_slope(slope: f32, distance: f32, line: &mut [f32], columns: Range<usize>) {
    for (column, score) in columns.clone().zip(&mut line[columns]) {
        *score = slope.mul_add(column as f32 - distance, *score);
    }
}

/// Scores of all flat rows for `G` groups, four rows at a time.
#[inline(always)]
fn score_rows<S: Simd, T: KvElement, const G: usize>(
    s: S,
    chunk: &Chunk<'_, T>,
    scores: &mut [f32],
    groups: [KeyGroup<'_, T>; G],
    columns: [usize; G],
) {
    let n_flat = chunk.n_flat();
    let mut flat = 0;
    while flat + 4 <= n_flat {
        score_tile::<S, T, 4, G>(s, chunk, flat, scores, groups, columns);
        flat += 4;
    }
    if flat + 2 <= n_flat {
        score_tile::<S, T, 2, G>(s, chunk, flat, scores, groups, columns);
        flat += 2;
    }
    if flat < n_flat {
        score_tile::<S, T, 1, G>(s, chunk, flat, scores, groups, columns);
    }
}

/// Scores of `R` flat rows for `G` groups.
#[inline(always)]
fn score_tile<S: Simd, T: KvElement, const R: usize, const G: usize>(
    s: S,
    chunk: &Chunk<'_, T>,
    flat: usize,
    scores: &mut [f32],
    groups: [KeyGroup<'_, T>; G],
    columns: [usize; G],
) {
    let dim = chunk.shape.key_dim;
    let mut q: [&[f32]; R] = [&[]; R];
    for (r, q) in q.iter_mut().enumerate() {
        *q = &chunk.q[(flat + r) * dim..(flat + r + 1) * dim];
    }
    for group in &groups {
        assert_eq!(group.keys.len(), dim, "invariant: a key group has one line per dimension");
    }
    let mut acc = [[s.splat(0.0); G]; R];
    for d in 0..dim {
        let mut k = [s.splat(0.0); G];
        for g in 0..G {
            k[g] = T::load(s, &groups[g].keys[d]);
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
            let dot = match groups[g].scales {
                Some(scales) => s.mul(acc[r][g], s.load(scales)),
                None => acc[r][g],
            };
            let score = s.mul(dot, scale);
            let lanes = line[columns[g]..].first_chunk_mut();
            s.store(score, lanes.expect("invariant: a line has room for every group"));
        }
    }
}
