//! Values, weighted and summed.
//!
//! ```text
//! value        [token][value_dim]        -> 16 elements per fused multiply-add and flat row
//!
//! w[t] = e[t]                                                      f32 .. fp8
//! w[t] = e[t] · value scale[t]                                          int8
//!
//! for 4 flat rows x 64 elements at a time, over the positions of the chunk:
//!         acc[r][d] = fma(w[r][t], v[t][d], acc[r][d])             t ascends
//! ```
//!
//! Rows of a causal prompt end at different positions. A tile of four takes the positions that all
//! four rows see together, and the remaining positions row by row, so that no row touches a value
//! that it may not see. Paths of a draft tree follow, one value at a time.
//!
//! The sums stay in registers over the whole chunk. Wider values are then read in strips of 64
//! elements, which the prefetchers of the hardware follow badly; but they are in the cache already
//! (`coming.rs`).
//!
//! A call between two blocks would make the sums spill, so the address of the next block is
//! computed without closures, and inlined.
//!
//! Tried and dropped: sums that are loaded and stored once per block; scaling the values rather
//! than the weights (`value_dim` products per position instead of one).

use std::ops::Range;

use super::CHUNK;
use super::chunk::{Chunk, SCORE_LINE};
use super::tree::Path;
use crate::ops::kv::KvElement;
use crate::simd::{LANES, Simd, Task};

/// Bytes of a line of memory.
const LINE: usize = 64;

/// Adds the weighted values of the dense columns to `acc` `[R, padded]` of `R` flat rows;
/// `scores` begins at `flat`.
#[inline(always)]
pub(super) fn weigh_tile<S: Simd, T: KvElement, const R: usize>(
    s: S,
    chunk: &Chunk<'_, T>,
    flat: usize,
    scores: &[f32],
    acc: &mut [f32],
) {
    let padded = chunk.shape.padded_dim();
    let mut ends = [(0, 0); R];
    let dense = chunk.dense();
    let (mut low, mut high) = (0, CHUNK);
    for (r, ends) in ends.iter_mut().enumerate() {
        let (row_low, row_high) = chunk.visible(flat + r);
        *ends = (row_low.min(dense), row_high.min(dense));
        low = low.max(ends.0);
        high = high.min(ends.1);
    }
    if R == 1 {
        return s.apart(Weigh::<T, R> { chunk, scores, acc, visible: low..high });
    }
    // All rows see `[low, high)`; where it is empty, every row goes alone.
    let high = high.max(low);
    for is_before in [true, false] {
        for (r, &(row_low, row_high)) in ends.iter().enumerate() {
            let line = &scores[r * SCORE_LINE..(r + 1) * SCORE_LINE];
            let acc = &mut acc[r * padded..(r + 1) * padded];
            let alone =
                if is_before { row_low..row_high.min(low) } else { row_low.max(high)..row_high };
            s.apart(Weigh::<T, 1> { chunk, scores: line, acc, visible: alone });
        }
        if is_before && ends.iter().all(|&(row_low, row_high)| row_low <= low && row_high >= high) {
            s.apart(Weigh::<T, R> { chunk, scores, acc, visible: low..high });
        }
    }
}

/// Adds the weighted values of the columns `visible` to the sums of `R` rows.
struct Weigh<'a, 'c, T, const R: usize> {
    chunk: &'a Chunk<'c, T>,
    scores: &'a [f32],
    acc: &'a mut [f32],
    visible: Range<usize>,
}

impl<S: Simd, T: KvElement, const R: usize> Task<S> for Weigh<'_, '_, T, R> {
    type Out = ();

    #[inline(always)]
    fn run(self, s: S) {
        let Self { chunk, scores, acc, visible } = self;
        if visible.is_empty() {
            return;
        }
        let n_vectors = chunk.shape.padded_dim() / LANES;
        let mut first = 0;
        if S::IS_WIDE || R == 1 {
            while first + 4 <= n_vectors {
                weigh_strip::<S, T, R, 4>(s, chunk, scores, acc, visible.clone(), first);
                first += 4;
            }
        }
        if S::IS_WIDE || R < 4 {
            while first + 2 <= n_vectors {
                weigh_strip::<S, T, R, 2>(s, chunk, scores, acc, visible.clone(), first);
                first += 2;
            }
        }
        while first < n_vectors {
            weigh_strip::<S, T, R, 1>(s, chunk, scores, acc, visible.clone(), first);
            first += 1;
        }
    }
}

/// Sixteen times `V` elements of `R` rows over `visible`.
#[inline(always)]
fn weigh_strip<S: Simd, T: KvElement, const R: usize, const V: usize>(
    s: S,
    chunk: &Chunk<'_, T>,
    scores: &[f32],
    acc: &mut [f32],
    visible: Range<usize>,
    first: usize,
) {
    let n_vectors = chunk.shape.padded_dim() / LANES;
    let mut sums = load_sums::<S, R, V>(s, acc, first, n_vectors);
    let end = chunk.start + visible.end;
    let mut position = chunk.start + visible.start;
    while position < end {
        let (values, next) = chunk.values(position, end);
        let column = LANES + position - chunk.start;
        let mut weights: [&[f32]; R] = [&[]; R];
        for (r, weights) in weights.iter_mut().enumerate() {
            *weights = &scores[r * SCORE_LINE + column..][..next - position];
        }
        let to_coming = chunk.to_coming(values.as_ptr().cast(), position);
        if first == 0 {
            chunk.prefetch_coming_scales(s, position);
        }
        add_values(s, weights, &Strip { values, n_vectors, first, to_coming }, &mut sums);
        position = next;
    }
    store_sums(s, &sums, acc, first, n_vectors);
}

/// Adds the weighted values of a row's path, position by position, to `acc` of all rows.
#[inline(always)]
pub(super) fn weigh_path<S: Simd, T: KvElement>(
    s: S,
    chunk: &Chunk<'_, T>,
    scores: &[f32],
    path: &Path,
    acc: &mut [f32],
) {
    let Some(tree) = &chunk.tree else { return };
    let padded = chunk.shape.padded_dim();
    for flat in path.row * chunk.group..(path.row + 1) * chunk.group {
        let weights = &scores[flat * SCORE_LINE + LANES..][path.columns.clone()];
        let acc = &mut acc[flat * padded..(flat + 1) * padded];
        for (i, &node) in path.rows().iter().enumerate() {
            let position = tree.first_position + node as usize;
            let (values, _) = chunk.values(position, position + 1);
            let (weights, n_vectors) = ([&weights[i..i + 1]], padded / LANES);
            s.apart(WeighValues { weights, values, acc, n_vectors });
        }
    }
}

/// Multiplies the weights of all flat rows by the scales of their values.
#[inline(always)]
pub(super) fn scale_weights<T: KvElement>(chunk: &Chunk<'_, T>, scores: &mut [f32]) {
    let dense = chunk.dense();
    for (flat, line) in scores.chunks_exact_mut(SCORE_LINE).take(chunk.n_flat()).enumerate() {
        let line = &mut line[LANES..];
        let (low, high) = chunk.visible(flat);
        let (mut position, end) = (chunk.start + low, chunk.start + high.min(dense));
        while position < end {
            let (scales, next) = chunk.value_scales(position, end);
            for (weight, scale) in line[position - chunk.start..].iter_mut().zip(scales) {
                *weight *= scale;
            }
            position = next;
        }
        if let (Some(tree), Some(path)) = (&chunk.tree, chunk.path(flat / chunk.group)) {
            for (weight, &node) in line[path.columns.clone()].iter_mut().zip(path.rows()) {
                let position = tree.first_position + node as usize;
                *weight *= chunk.value_scales(position, position + 1).0[0];
            }
        }
    }
}

/// Adds the weighted `values` `[position][n_vectors]` to `acc` `[R, padded]`.
pub(super) struct WeighValues<'a, T, const R: usize> {
    pub(super) weights: [&'a [f32]; R],
    pub(super) values: &'a [[T; LANES]],
    pub(super) acc: &'a mut [f32],
    pub(super) n_vectors: usize,
}

impl<S: Simd, T: KvElement, const R: usize> Task<S> for WeighValues<'_, T, R> {
    type Out = ();

    #[inline(always)]
    fn run(self, s: S) {
        let Self { weights, values, acc, n_vectors } = self;
        let strip = |first| Strip { values, n_vectors, first, to_coming: 0 };
        let mut first = 0;
        if S::IS_WIDE || R == 1 {
            while first + 4 <= n_vectors {
                let mut sums = load_sums::<S, R, 4>(s, acc, first, n_vectors);
                add_values(s, weights, &strip(first), &mut sums);
                store_sums(s, &sums, acc, first, n_vectors);
                first += 4;
            }
        }
        while first < n_vectors {
            let mut sums = load_sums::<S, R, 1>(s, acc, first, n_vectors);
            add_values(s, weights, &strip(first), &mut sums);
            store_sums(s, &sums, acc, first, n_vectors);
            first += 1;
        }
    }
}

/// Sixteen times `V` elements of `R` rows.
#[inline(always)]
fn load_sums<S: Simd, const R: usize, const V: usize>(
    s: S,
    acc: &[f32],
    first: usize,
    n_vectors: usize,
) -> [[S::F; V]; R] {
    let acc = acc.as_chunks::<LANES>().0;
    let mut sums = [[s.splat(0.0); V]; R];
    for r in 0..R {
        for v in 0..V {
            sums[r][v] = s.load(&acc[r * n_vectors + first + v]);
        }
    }
    sums
}

/// Writes the sums back.
#[inline(always)]
fn store_sums<S: Simd, const R: usize, const V: usize>(
    s: S,
    sums: &[[S::F; V]; R],
    acc: &mut [f32],
    first: usize,
    n_vectors: usize,
) {
    let acc = acc.as_chunks_mut::<LANES>().0;
    for r in 0..R {
        for v in 0..V {
            s.store(sums[r][v], &mut acc[r * n_vectors + first + v]);
        }
    }
}

/// Some elements of consecutive values.
struct Strip<'a, T> {
    /// `[position][n_vectors]`.
    values: &'a [[T; LANES]],
    n_vectors: usize,
    /// First sixteen of them.
    first: usize,
    /// Bytes from each value to the next data read for its position.
    to_coming: usize,
}

/// Adds sixteen times `V` weighted elements.
#[inline(always)]
fn add_values<S: Simd, T: KvElement, const R: usize, const V: usize>(
    s: S,
    weights: [&[f32]; R],
    strip: &Strip<'_, T>,
    sums: &mut [[S::F; V]; R],
) {
    for (t, line) in strip.values.chunks_exact(strip.n_vectors).enumerate() {
        let line = &line[strip.first..strip.first + V];
        let mut value = [s.splat(0.0); V];
        for v in 0..V {
            value[v] = T::load(s, &line[v]);
            if (v * size_of::<[T; LANES]>()).is_multiple_of(LINE) {
                s.prefetch(line[v].as_ptr().cast::<u8>().wrapping_add(strip.to_coming));
            }
        }
        for r in 0..R {
            let weight = s.splat(weights[r][t]);
            for v in 0..V {
                sums[r][v] = s.fma(weight, value[v], sums[r][v]);
            }
        }
    }
}
