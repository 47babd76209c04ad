//! Values that are the beginning of their keys, weighted and summed.
//!
//! ```text
//! key group    [key_dim][16 tokens]      lanes are tokens
//!    | the first value_dim elements, widened and transposed, once per item
//! turned       [16 tokens][value_dim]    lanes are elements, f32
//!    | weighted and added as stored values are                                  (weigh.rs)
//! acc[r][d] = fma(w[r][t], turned[t][d], acc[r][d])      t ascends
//! ```
//!
//! The terms and their order are the same as for values stored beside their keys, so the bits are
//! the same, and the cache takes half the memory. The price: 64 shuffles for each 16 by 16
//! elements, against the 256 multiply-adds of 16 flat rows (AVX-512); 64 bytes of scratch per
//! element of a value, which stay in the first two caches.
//!
//! Rows of one item that see different positions of a group go one by one. Items of latent
//! attention are usually heads of one row, which see the same positions.
//!
//! Considered and not taken (reasoned, not measured): lanes that are heads (nothing to transpose,
//! but idle lanes where fewer than 16 heads are left, and masks, which law 6 forbids to be products
//! with zero); sums with tokens in the lanes (another order than that of stored values).

use std::ops::Range;

use super::chunk::{Chunk, SCORE_LINE};
use super::score::KeyGroup;
use super::tree::Path;
use super::weigh::WeighValues;
use crate::ops::kv::{KvElement, KvShape};
use crate::simd::{LANES, Simd};

/// Floats of scratch that values of this shape are transposed in.
pub(super) fn n_turned(shape: &KvShape) -> usize {
    if shape.values_in_keys { LANES * shape.padded_dim() } else { 0 }
}

/// Adds the weighted values of the dense columns in `seen` to `acc` `[n_flat, padded]`.
#[inline(always)]
pub(super) fn weigh_keys<S: Simd, T: KvElement>(
    s: S,
    chunk: &Chunk<'_, T>,
    scores: &[f32],
    turned: &mut [f32],
    acc: &mut [f32],
    seen: Range<usize>,
) {
    let padded = chunk.shape.padded_dim();
    let end = chunk.start + seen.end.min(chunk.dense());
    let mut position = chunk.start + seen.start;
    while position < end {
        let group = chunk.key_group(position);
        turn(s, &group, chunk.shape.value_dim, turned);
        let first = position - group.first;
        position = group.next.min(end);
        let group = Group {
            values: turned.as_chunks().0,
            first: group.first,
            lanes: first..position - group.first,
        };
        let n_flat = chunk.n_flat();
        let mut flat = 0;
        while flat + 4 <= n_flat {
            let acc = &mut acc[flat * padded..(flat + 4) * padded];
            weigh_group::<S, T, 4>(s, chunk, flat, scores, acc, &group);
            flat += 4;
        }
        while flat < n_flat {
            let acc = &mut acc[flat * padded..(flat + 1) * padded];
            weigh_group::<S, T, 1>(s, chunk, flat, scores, acc, &group);
            flat += 1;
        }
    }
}

/// Adds the weighted values of a row's path, position by position, to `acc` of all rows.
#[inline(always)]
pub(super) fn weigh_path_keys<S: Simd, T: KvElement>(
    s: S,
    chunk: &Chunk<'_, T>,
    scores: &[f32],
    turned: &mut [f32],
    path: &Path,
    acc: &mut [f32],
) {
    let Some(tree) = &chunk.tree else { return };
    let (dim, padded) = (chunk.shape.value_dim, chunk.shape.padded_dim());
    for (column, &node) in path.columns.clone().zip(path.rows()) {
        let position = tree.first_position + node as usize;
        let group = chunk.key_group(position);
        let value = &mut turned[..padded];
        value[dim..].fill(0.0);
        for (out, keys) in value[..dim].iter_mut().zip(group.keys) {
            let mut lanes = [0.0; LANES];
            s.store(T::load(s, keys), &mut lanes);
            *out = lanes[position - group.first];
        }
        let value = value.as_chunks().0;
        for flat in path.row * chunk.group..(path.row + 1) * chunk.group {
            let weight = &scores[flat * SCORE_LINE + LANES + column..][..1];
            let acc = &mut acc[flat * padded..(flat + 1) * padded];
            let n_vectors = padded / LANES;
            s.apart(WeighValues::<f32, 1> { weights: [weight], values: value, acc, n_vectors });
        }
    }
}

/// Some transposed values of one key group.
struct Group<'a> {
    /// `[16 tokens][padded]`.
    values: &'a [[f32; LANES]],
    /// Position of lane 0.
    first: usize,
    /// Tokens that any row sees.
    lanes: Range<usize>,
}

/// Adds the weighted values of `group` to `acc` `[R, padded]` of `R` flat rows from `flat` on.
#[inline(always)]
fn weigh_group<S: Simd, T: KvElement, const R: usize>(
    s: S,
    chunk: &Chunk<'_, T>,
    flat: usize,
    scores: &[f32],
    acc: &mut [f32],
    group: &Group<'_>,
) {
    let padded = chunk.shape.padded_dim();
    let n_vectors = padded / LANES;
    let mut seen: [Range<usize>; R] = std::array::from_fn(|_| 0..0);
    for (r, seen) in seen.iter_mut().enumerate() {
        let (low, high) = chunk.visible(flat + r);
        let lane = |column: usize| {
            let position = chunk.start + column;
            position.saturating_sub(group.first).clamp(group.lanes.start, group.lanes.end)
        };
        *seen = lane(low)..lane(high.min(chunk.dense()));
    }
    // The weights of `lanes`, which begin at most 15 columns before the chunk's first.
    let weights = |flat: usize, lanes: &Range<usize>| {
        let first = LANES + group.first - chunk.start + lanes.start;
        &scores[flat * SCORE_LINE + first..][..lanes.len()]
    };
    let values =
        |lanes: &Range<usize>| &group.values[lanes.start * n_vectors..lanes.end * n_vectors];
    if seen.iter().all(|other| *other == seen[0]) {
        let mut all: [&[f32]; R] = [&[]; R];
        for (r, all) in all.iter_mut().enumerate() {
            *all = weights(flat + r, &seen[0]);
        }
        let values = values(&seen[0]);
        return s.apart(WeighValues::<f32, R> { weights: all, values, acc, n_vectors });
    }
    for (r, seen) in seen.iter().enumerate() {
        let acc = &mut acc[r * padded..(r + 1) * padded];
        let (weights, values) = ([weights(flat + r, seen)], values(seen));
        s.apart(WeighValues::<f32, 1> { weights, values, acc, n_vectors });
    }
}

/// The first `dim` elements of the keys of a group as `[16 tokens][dim, padded with zeros]`.
#[inline(always)]
fn turn<S: Simd, T: KvElement>(s: S, group: &KeyGroup<'_, T>, dim: usize, turned: &mut [f32]) {
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
