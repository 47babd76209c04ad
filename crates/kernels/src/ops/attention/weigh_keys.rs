//! Values that are the beginning of their keys, weighted and summed.
//!
//! ```text
//! key groups   [key_dim][16 tokens]      lanes are tokens
//!    | the first value_dim elements, widened and transposed, once per item
//! turned       [32 columns][value_dim]   lanes are elements, f32; a block of the chunk
//!    | weighted and added as stored values are                                  (weigh.rs)
//! acc[r][d]
//! ```
//!
//! The terms and their order are the same as for values stored beside their keys, so the bits are
//! the same, and the cache takes half the memory. The price: 64 shuffles for each 16 by 16
//! elements, against the 256 multiply-adds of 16 flat rows (AVX-512); 128 bytes of scratch per
//! element of a value, which stay in the first two caches.
//!
//! Rows of one item that see different columns of a block go one by one. Items of latent attention
//! are usually heads of one row, which see the same columns.
//!
//! Considered and not taken (reasoned, not measured): lanes that are heads (nothing to transpose,
//! but idle lanes where fewer than 16 heads are left, and masks, which law 6 forbids to be products
//! with zero); sums with tokens in the lanes (another order than that of stored values).

use std::ops::Range;

use super::BLOCK;
use super::chunk::{Chunk, SCORE_LINE};
use super::score::KeyGroup;
use super::tree::Path;
use super::weigh::{Values, Weigh};
use crate::ops::kv::{KvElement, KvShape};
use crate::simd::{LANES, Simd};

/// Floats of scratch that values of this shape are transposed in.
pub(super) fn n_turned(shape: &KvShape) -> usize {
    if shape.values_in_keys { BLOCK * shape.padded_dim() } else { 0 }
}

/// Transposed values of some columns of one block.
struct Turned<'a> {
    /// `[32 columns][n_vectors]`.
    lines: &'a [[f32; LANES]],
    /// First column of the block.
    block: usize,
    n_vectors: usize,
}

impl Values<f32> for Turned<'_> {
    #[inline(always)]
    fn sixteen(&self, column: usize) -> Option<&[[f32; LANES]]> {
        Some(&self.lines[(column - self.block) * self.n_vectors..][..LANES * self.n_vectors])
    }

    #[inline(always)]
    fn one(&self, column: usize) -> &[[f32; LANES]] {
        &self.lines[(column - self.block) * self.n_vectors..][..self.n_vectors]
    }

    #[inline(always)]
    fn to_coming(&self, _: *const f32, _: usize) -> usize {
        0
    }
}

/// Adds the weighted values of all columns to `acc` `[n_flat, padded]`.
#[inline(always)]
pub(super) fn weigh_keys<S: Simd, T: KvElement>(
    s: S,
    chunk: &Chunk<'_, T>,
    scores: &[f32],
    turned: &mut [f32],
    acc: &mut [f32],
) {
    let n_flat = chunk.n_flat();
    let rows = |flat| chunk.shared_columns(flat);
    let seen = (0..n_flat).map(rows).filter(|columns| !columns.is_empty());
    let seen = seen.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)).unwrap_or(0..0);
    for block in (seen.start / BLOCK * BLOCK..seen.end).step_by(BLOCK) {
        let within =
            |columns: Range<usize>| columns.start.max(block)..columns.end.min(block + BLOCK);
        let values = turn(s, chunk, None, within(seen.clone()), turned);
        let mut flat = 0;
        while flat < n_flat {
            let columns = within(rows(flat));
            let is_same = |other: usize| within(rows(other)) == columns;
            let n_rows =
                if flat + 4 <= n_flat && (1..4).all(|r| is_same(flat + r)) { 4 } else { 1 };
            weigh_block(s, &values, flat..flat + n_rows, scores, acc, columns);
            flat += n_rows;
        }
    }
    for row in 0..n_flat / chunk.group {
        let Some(path) = chunk.path(row) else { continue };
        let first = row * chunk.group;
        let columns = chunk.path_blocks(first);
        for block in (columns.start / BLOCK * BLOCK..columns.end).step_by(BLOCK) {
            let columns = columns.start.max(block)..columns.end.min(block + BLOCK);
            let values = turn(s, chunk, Some(&path), columns.clone(), turned);
            for flat in first..first + chunk.group {
                weigh_block(s, &values, flat..flat + 1, scores, acc, columns.clone());
            }
        }
    }
}

/// Adds the weighted values of `columns`, which are of one block, to `acc` of one flat row or of
/// four.
#[inline(always)]
fn weigh_block<S: Simd>(
    s: S,
    values: &Turned<'_>,
    rows: Range<usize>,
    scores: &[f32],
    acc: &mut [f32],
    columns: Range<usize>,
) {
    let padded = values.n_vectors * LANES;
    let acc = &mut acc[rows.start * padded..rows.end * padded];
    let scores = &scores[rows.start * SCORE_LINE..];
    match rows.len() {
        4 => s.apart(Weigh::<_, f32, 4>::new(values, scores, acc, columns)),
        _ => s.apart(Weigh::<_, f32, 1>::new(values, scores, acc, columns)),
    }
}

/// Transposes the values of `columns`, which are of one block, as a row with `path` sees them.
#[inline(always)]
fn turn<'a, S: Simd, T: KvElement>(
    s: S,
    chunk: &Chunk<'_, T>,
    path: Option<&Path>,
    columns: Range<usize>,
    turned: &'a mut [f32],
) -> Turned<'a> {
    let padded = chunk.shape.padded_dim();
    let block = columns.start / BLOCK * BLOCK;
    let mut column = columns.start;
    while column < columns.end {
        let group = chunk.key_group(chunk.position_of(path, column));
        let at = column % BLOCK;
        // All of a group lies in the block where its first token does, and no path is in it.
        let is_dense = path.is_none_or(|path| column + LANES <= path.columns.start);
        let is_whole = group.next - group.first == LANES && at + LANES <= BLOCK;
        if is_dense && is_whole && group.first == chunk.start + column {
            turn_group(s, &group, chunk.shape.value_dim, &mut turned[at * padded..]);
            column += LANES;
        } else {
            let lane = chunk.position_of(path, column) - group.first;
            turn_one(s, &group, lane, chunk.shape.value_dim, &mut turned[at * padded..][..padded]);
            column += 1;
        }
    }
    Turned { lines: turned.as_chunks().0, block, n_vectors: padded / LANES }
}

/// The first `dim` elements of one key of a group, padded with zeros.
#[inline(always)]
fn turn_one<S: Simd, T: KvElement>(
    s: S,
    group: &KeyGroup<'_, T>,
    lane: usize,
    dim: usize,
    value: &mut [f32],
) {
    value[dim..].fill(0.0);
    for (out, keys) in value[..dim].iter_mut().zip(group.keys) {
        let mut lanes = [0.0; LANES];
        s.store(T::load(s, keys), &mut lanes);
        *out = lanes[lane];
    }
}

/// The first `dim` elements of the keys of a group as `[16 tokens][dim, padded with zeros]`.
#[inline(always)]
fn turn_group<S: Simd, T: KvElement>(
    s: S,
    group: &KeyGroup<'_, T>,
    dim: usize,
    turned: &mut [f32],
) {
    let padded = dim.next_multiple_of(LANES);
    for first in (0..padded).step_by(LANES) {
        let mut tile = [s.splat(0.0); LANES];
        for (tile, keys) in tile.iter_mut().zip(&group.keys[first..dim.min(first + LANES)]) {
            *tile = T::load(s, keys);
        }
        s.transpose(&mut tile);
        for (token, tile) in tile.into_iter().enumerate() {
            let out = turned[token * padded + first..].first_chunk_mut();
            s.store(tile, out.expect("invariant: there is scratch for a group of values"));
        }
    }
}
