//! Scores of query rows against key groups.
//!
//! ```text
//! key group    [key_dim][16 tokens]      -> 16 scores per fused multiply-add and flat row
//!
//! for 4 groups x 4 flat rows at a time, for each 32 elements d:
//!     for each half: part[r][g] = 0, then for each pair
//!         part[r][g] = fma(q[r][d + 1], k[g][d + 1], part[r][g]), and the same with d
//!     acc[r][g] += part of the first half + part of the last
//! score = acc · scale                            f32, f16
//! score = acc                                    bf16, fp8; their queries have the scale
//! score = acc · key scale[token]                 int8; its queries have the scale
//! ```
//! with a slope:                           score = fma(slope, t - p, score)      t, p: positions
//!
//! Sixteen sums at a time (AVX-512; four in AVX2, of two registers each) hide the latency of the
//! multiply-adds and their widened keys: 118 GFLOP/s on one Zen 4 core, its peak, from the
//! first-level cache, where 2 groups x 4 rows reach 95 to 101. Rows that are no multiple of four
//! are cut evenly (7 are 4 and 3, 5 are 3 and 2). Tried and dropped: 8 rows x 2 groups (109), 8 x 3
//! (117, for twice as many tiles as four rows need).
//!
//! A lane is a token: its score does not depend on the other lanes, nor on its column in the line
//! of scores. So a key of a draft tree has the same score in every column that it counts as.

use std::ops::Range;

use super::chunk::{Chunk, SCORE_LINE};
use super::input::DistanceBias;
use super::tree::Path;
use super::{BLOCK, HALF};
use crate::ops::kv::KvElement;
use crate::simd::{LANES, Simd};

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

/// A key group, the column of its scores, and the distance to the data read next.
#[derive(Clone, Copy)]
struct Placed<'a, T> {
    group: KeyGroup<'a, T>,
    column: usize,
    /// Bytes from its keys to the data that is read for its tokens next.
    next: usize,
}

/// Scores of all flat rows for the groups that hold `positions`, which are dense.
#[inline(always)]
pub(super) fn score<S: Simd, T: KvElement>(
    s: S,
    chunk: &Chunk<'_, T>,
    scores: &mut [f32],
    positions: Range<usize>,
) {
    if S::IS_WIDE {
        score_groups::<S, T, 4>(s, chunk, scores, positions);
    } else {
        score_groups::<S, T, 1>(s, chunk, scores, positions);
    }
}

/// Scores of all flat rows, `G` groups at a time.
#[inline(always)]
fn score_groups<S: Simd, T: KvElement, const G: usize>(
    s: S,
    chunk: &Chunk<'_, T>,
    scores: &mut [f32],
    positions: Range<usize>,
) {
    let mut position = positions.start;
    while position < positions.end {
        let first = place(s, chunk, position);
        let (mut groups, mut n) = ([first; G], 1);
        position = first.group.next;
        while n < G && position < positions.end {
            groups[n] = place(s, chunk, position);
            position = groups[n].group.next;
            n += 1;
        }
        if n == G {
            score_rows(s, chunk, scores, groups);
        } else {
            for &group in &groups[..n] {
                score_rows(s, chunk, scores, [group]);
            }
        }
    }
}

/// The key group that holds `position`, which is dense. The scales of its values are read next.
#[inline(always)]
fn place<'a, S: Simd, T: KvElement>(s: S, chunk: &Chunk<'a, T>, position: usize) -> Placed<'a, T> {
    let group = chunk.key_group(position);
    chunk.prefetch_value_scales(s, group.first.max(chunk.start));
    // A group's first token is at most 15 before the chunk, and never after its last position.
    Placed { group, column: group.first + LANES - chunk.start, next: chunk.after_keys(&group) }
}

/// Scores of the flat rows of a row for its path.
///
/// The path's nodes ascend, so the nodes of one key group follow each other; the whole group is
/// computed in the line's spare lanes, and the nodes' lanes are copied from there.
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
        let placed = Placed { group, column: 0, next: 0 };
        let (here, rest) =
            nodes.split_at(nodes.partition_point(|&node| position(node) < group.next));
        for flat in flats.clone() {
            score_tile::<S, T, 1, 1>(s, chunk, flat, scores, [placed]);
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
/// from the chunk's start. Each score is computed alone, so the compiler may take any number of
/// lanes.
#[inline(always)]
pub(super) fn add_slope(slope: f32, distance: f32, line: &mut [f32], columns: Range<usize>) {
    for (column, score) in columns.clone().zip(&mut line[columns]) {
        *score = slope.mul_add(column as f32 - distance, *score);
    }
}

/// Adds the bias of one head by distance to the scores of `columns`, for a query at `position` and the
/// columns of the chunk that begins at `start`.
#[inline(always)]
pub(super) fn add_bias(
    bias: &DistanceBias<'_>,
    position: usize,
    start: usize,
    line: &mut [f32],
    columns: Range<usize>,
) {
    let values = bias.values;
    let (first, last) = (values[0], values[values.len() - 1]);
    // Columns of the distances -reach and reach, within the columns at hand.
    let from = (position.saturating_sub(bias.reach).saturating_sub(start)).max(columns.start);
    let to = (position + bias.reach).saturating_sub(start);
    let (from, to) = (from.min(columns.end), to.clamp(columns.start, columns.end));
    line[columns.start..from].iter_mut().for_each(|score| *score += first);
    if from < to {
        let entries = &values[start + from + bias.reach - position..][..to - from];
        line[from..to].iter_mut().zip(entries).for_each(|(score, bias)| *score += bias);
    }
    line[to.max(from)..columns.end].iter_mut().for_each(|score| *score += last);
}

/// Scores of all flat rows for `G` groups, in tiles of rows as even as can be.
#[inline(always)]
fn score_rows<S: Simd, T: KvElement, const G: usize>(
    s: S,
    chunk: &Chunk<'_, T>,
    scores: &mut [f32],
    groups: [Placed<'_, T>; G],
) {
    let n_flat = chunk.n_flat();
    let per_tile = rows_per_tile(n_flat);
    for flat in (0..n_flat).step_by(per_tile) {
        match per_tile.min(n_flat - flat) {
            1 => score_tile::<S, T, 1, G>(s, chunk, flat, scores, groups),
            2 => score_tile::<S, T, 2, G>(s, chunk, flat, scores, groups),
            3 => score_tile::<S, T, 3, G>(s, chunk, flat, scores, groups),
            _ => score_tile::<S, T, 4, G>(s, chunk, flat, scores, groups),
        }
    }
}

/// Rows of a tile, where `n` rows are in as few tiles of at most four as can be.
#[inline(always)]
pub(super) fn rows_per_tile(n: usize) -> usize {
    n.div_ceil(n.div_ceil(4))
}

/// Scores of `R` flat rows for `G` groups.
#[inline(always)]
fn score_tile<S: Simd, T: KvElement, const R: usize, const G: usize>(
    s: S,
    chunk: &Chunk<'_, T>,
    flat: usize,
    scores: &mut [f32],
    groups: [Placed<'_, T>; G],
) {
    let dim = chunk.shape.key_dim;
    let mut q: [&[f32]; R] = [&[]; R];
    for (r, q) in q.iter_mut().enumerate() {
        *q = &chunk.q[(flat + r) * dim..(flat + r + 1) * dim];
    }
    for Placed { group, .. } in &groups {
        assert_eq!(group.keys.len(), dim, "invariant: a key group has one line per dimension");
    }
    let mut acc = [[s.splat(0.0); G]; R];
    for start in (0..dim).step_by(BLOCK) {
        let middle = dim.min(start + HALF);
        let first = score_half(s, &q, &groups, start..middle);
        let last = score_half(s, &q, &groups, middle..dim.min(start + BLOCK));
        for r in 0..R {
            for g in 0..G {
                acc[r][g] = s.add(acc[r][g], s.add(first[r][g], last[r][g]));
            }
        }
    }
    let scale = s.splat(chunk.scale);
    for r in 0..R {
        let line = &mut scores[(flat + r) * SCORE_LINE..(flat + r + 1) * SCORE_LINE];
        for g in 0..G {
            let dot = match groups[g].group.scales {
                Some(scales) => s.mul(acc[r][g], s.load(scales)),
                None => acc[r][g],
            };
            let score = if T::BF16_PRODUCTS { dot } else { s.mul(dot, scale) };
            let lanes = line[groups[g].column..].first_chunk_mut();
            s.store(score, lanes.expect("invariant: a line has room for every group"));
        }
    }
}

/// Products of the elements `dims`, which are half a block or its part within the head.
#[inline(always)]
fn score_half<S: Simd, T: KvElement, const R: usize, const G: usize>(
    s: S,
    q: &[&[f32]; R],
    groups: &[Placed<'_, T>; G],
    dims: Range<usize>,
) -> [[S::F; G]; R] {
    let mut part = [[s.splat(0.0); G]; R];
    let (mut rows, mut lines): ([&[f32]; R], [&[[T; LANES]]; G]) = ([&[]; R], [&[]; G]);
    for r in 0..R {
        rows[r] = &q[r][dims.clone()];
    }
    for g in 0..G {
        lines[g] = &groups[g].group.keys[dims.clone()];
    }
    if dims.len() == HALF {
        // With lengths that the compiler knows, no bounds are checked in the loop.
        let mut whole_rows = [&[0.0; HALF]; R];
        for r in 0..R {
            whole_rows[r] = rows[r].first_chunk().expect("invariant: half a block");
        }
        let mut whole_lines = [lines[0].first_chunk::<HALF>().expect("invariant: half a block"); G];
        for g in 1..G {
            whole_lines[g] = lines[g].first_chunk().expect("invariant: half a block");
        }
        for pair in 0..HALF / 2 {
            for d in [2 * pair + 1, 2 * pair] {
                let mut k = [s.splat(0.0); G];
                for g in 0..G {
                    let line = &whole_lines[g][d];
                    k[g] = T::load(s, line);
                    s.prefetch(line.as_ptr().cast::<u8>().wrapping_add(groups[g].next));
                }
                for r in 0..R {
                    let q = s.splat(whole_rows[r][d]);
                    for g in 0..G {
                        part[r][g] = s.fma(q, k[g], part[r][g]);
                    }
                }
            }
        }
        return part;
    }
    let n = dims.len();
    let mut d = 0;
    while d < n {
        if d + 1 < n {
            score_element(s, &rows, &lines, d + 1, &mut part);
        }
        score_element(s, &rows, &lines, d, &mut part);
        d += 2;
    }
    part
}

/// Products of element `d`.
#[inline(always)]
fn score_element<S: Simd, T: KvElement, const R: usize, const G: usize>(
    s: S,
    q: &[&[f32]; R],
    keys: &[&[[T; LANES]]; G],
    d: usize,
    part: &mut [[S::F; G]; R],
) {
    let mut k = [s.splat(0.0); G];
    for g in 0..G {
        k[g] = T::load(s, &keys[g][d]);
    }
    for r in 0..R {
        let q = s.splat(q[r][d]);
        for g in 0..G {
            part[r][g] = s.fma(q, k[g], part[r][g]);
        }
    }
}
