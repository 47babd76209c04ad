//! Chunks of bf16, fp8 and int8 keys and values on tile registers (Intel AMX).
//!
//! ```text
//! for each 32 flat rows:
//!   scores     for each 32 columns, for each 32 elements:            A: queries of 16 flat rows
//!                  C[i][j] += A[i] B[j]                              B: keys of 16 columns
//!              to the lines of scores
//!   weights    eight lines at a time; as bf16 in the first half of each line
//!   values     for each 32 elements, for each block of 32 columns:   A: weights of 16 flat rows
//!                  C[i][j] += A[i] B[j]                              B: values of 16 elements
//!              to the sums
//!
//! row j of B     .0 of column or element n: term j ^ 1, .1: term 16 + (j ^ 1)      of its 32 terms
//! ```
//!
//! The first 32 flat rows put keys and values in the order of B, just before they are multiplied; fp8
//! and int8 become bf16 by it. Scores of int8 are multiplied by the scales of their keys before they
//! become weights, and weights by the scales of their values: attention takes 1.3 times as long as
//! that of bf16 (4,096 tokens of prompt).
//!
//! A product adds up its even terms and its odd ones apart, then their sum to the result
//! ([`crate::simd::tiles`]). With the terms in these places, that is the canonical order, and the
//! bits are those of the other kernels.
//!
//! Columns that a row does not see have the weight 0, and their values are multiplied with it. That
//! leaves the bits as they are: sums begin at +0, and no product is so small that it rounds to -0,
//! because bf16 factors are 0 or at least 2⁻⁵⁰, and weights with scales 2⁻⁹⁹. An infinite or NaN
//! value of a column that some row does not see would reach it; a chunk with such a value is
//! computed without tiles.
//!
//! Per 32 flat rows, 256 columns and 64 elements: 64 + 64 products of 16 cycles, and 512
//! exponentials of sixteen lanes, of 7 cycles with their place in A. Per chunk, two times 512 rows
//! of B for all flat rows of the item, with two loads, a shuffle and a store each; hence the 512
//! flat rows of an item (256 take 7 % more time).
//!
//! Its bounds, on one thread of a Granite Rapids, where a product takes 4.9 ns if nothing else
//! happens:
//!
//! - The first-level cache. It holds the lines of 32 flat rows (36 KiB) and not much more, so the
//!   weights take the place of their scores, and keys and values, which come from the second level
//!   for each 32 flat rows, are read with the hint that leaves the first alone: a product with the
//!   store of its scores takes 8.5 ns, and 11.5 without the hint.
//! - Tiles at rest. After half a microsecond of vectors, the next products take 0.4 to 0.8 µs more;
//!   after more than 5 µs they are slower by half for another 5 µs.
//!
//! Tiles beat vectors from 6 flat rows on: 7 heads of 64 elements behind 4,096 tokens take 0.10 ms
//! instead of 0.12, six rows of them 0.20 instead of 0.59, and 4 heads 0.43 instead of 0.28. In int8,
//! behind 32,768 tokens: four heads of 256 elements 3.6 ms instead of 2.3, six rows of them 4.7 instead
//! of 9.6 (5.0 without prefetches of scales).
//!
//! Tried: each step for all flat rows of an item, whose lines are then in the second-level cache (a
//! third slower with 256 flat rows); products of the next and of the last 32 flat rows between the
//! exponentials, so that tiles do not rest (a tenth slower: it needs two sets of lines); a step for
//! 64 or 128 flat rows (no faster than for 256); keys and values of the next chunk prefetched
//! evenly over the exponentials instead of while these are put in order (2 % slower); groups
//! multiplied as soon as they are in order (10 % slower: tiles wait for rows that were just
//! written); scaled scores instead of scaled queries (a pass over all of them, 4 %).

mod order;
mod products;

use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;

use super::chunk::{Chunk, LINES, SCORE_LINE, Scales, gather_scales, largest};
use super::interleaved::{Interleave, Values, blocks, unseen_are_finite};
use super::merge::State;
use super::softmax::{BeforeScales, Rounded, Weights};
use super::weigh::{HALF_BF16, scaled};
use super::{BLOCK, CHUNK, HALF};
use crate::simd::math::{exp_bf16, exp_near_bf16};
use crate::simd::tiles::{ROWS, Stored};
use crate::simd::{Avx512, LANES, Simd};
use order::{arrange_halves, arrange_in_place, arrange_keys, arrange_row, arrange_values};
use products::{Forms, Rows};

/// Most flat rows of an item.
pub(super) const FLAT_ROWS: usize = 512;

/// Flat rows that are multiplied together, and columns or elements.
const PAIR: usize = 2 * ROWS;

/// Fewest flat rows for which tiles are faster than vectors.
const FEWEST_ROWS: usize = 6;

/// Blocks of columns of a chunk.
const MOST_BLOCKS: usize = CHUNK / BLOCK;

/// Memory of a thread: operands in the order that tiles read.
struct Scratch {
    /// Queries of 32 flat rows: `[key_dim / 32][2]`.
    queries: Vec<[Stored; 2]>,
    /// Keys of the chunk: `[32 columns][key_dim / 32][2]`.
    keys: Vec<[Stored; 2]>,
    /// Values of the chunk: `[32 elements][blocks][2]`.
    values: Vec<[Stored; 2]>,
    /// Scales of the keys and of the values of the columns, where their type has any.
    scales: Scales,
}

impl Scratch {
    const EMPTY: Self = Self {
        queries: Vec::new(),
        keys: Vec::new(),
        values: Vec::new(),
        scales: [[0.0; CHUNK]; 2],
    };
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch::EMPTY) };
}

/// Computes the chunk into `out`; `scratch` as for the vector kernels.
///
/// # Safety
///
/// This CPU has the features below, and tiles are supported.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) unsafe fn chunk<T: Interleave>(
    chunk: &Chunk<'_, T>,
    scratch: &mut [f32],
    out: &mut State<'_>,
) {
    let n_flat = chunk.n_flat();
    let (low, high) = chunk.seen(0..n_flat);
    if low >= high
        || !chunk.has_blocks_for(FEWEST_ROWS, high)
        || !unseen_are_finite(chunk, low..high)
    {
        // SAFETY: this function has the features of the shell.
        return unsafe { T::ON_AVX512(chunk, scratch, out) };
    }
    SCRATCH.with_borrow_mut(|memory| {
        let n_flat = n_flat.min(PAIR);
        // SAFETY: the caller vouches for tiles; none are alive in this thread.
        let tiles = unsafe { Forms::new(n_flat) };
        Products::new(chunk, low..high, tiles, memory).all(scratch, out);
    });
}

/// The products of a chunk.
struct Products<'a, T> {
    chunk: &'a Chunk<'a, T>,
    /// The columns that any row sees, the first of which begins a group.
    columns: Range<usize>,
    /// The values of each block of columns.
    blocks: [Values<'a, T>; MOST_BLOCKS],
    tiles: Forms,
    memory: &'a mut Scratch,
}

impl<'a, T: Interleave> Products<'a, T> {
    #[target_feature(enable = "avx512f")]
    fn new(
        chunk: &'a Chunk<'a, T>,
        columns: Range<usize>,
        tiles: Forms,
        memory: &'a mut Scratch,
    ) -> Self {
        let columns = columns.start / LANES * LANES..columns.end;
        let (n_blocks, n_elements) = (chunk.shape.key_dim / BLOCK, chunk.shape.padded_dim());
        grow(&mut memory.queries, n_blocks);
        grow(&mut memory.keys, columns.len().div_ceil(PAIR) * n_blocks);
        grow(&mut memory.values, n_elements.div_ceil(PAIR) * MOST_BLOCKS);
        let mut values = [Values::NONE; MOST_BLOCKS];
        for block in blocks(&columns) {
            values[block] = Values::of(chunk, block);
        }
        if T::HAS_SCALES {
            gather_scales(chunk, columns.clone(), &mut memory.scales);
        }
        Self { chunk, columns, blocks: values, tiles, memory }
    }

    /// Computes all flat rows, 32 at a time.
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
    fn all(mut self, scratch: &mut [f32], out: &mut State<'_>) {
        let n_flat = self.chunk.n_flat();
        let n_keys = self.columns.len().div_ceil(PAIR);
        let lines = &mut scratch[..n_flat.min(PAIR) * SCORE_LINE];
        for first in (0..n_flat).step_by(PAIR) {
            let flats = first..(first + PAIR).min(n_flat);
            let (low, high) = self.chunk.seen(flats.clone());
            let seen = low..high.max(low);
            self.arrange_queries(flats.clone());
            if first == 0 {
                self.arrange_keys(0);
            }
            for at in 0..n_keys {
                if first == 0 && at + 1 < n_keys {
                    self.arrange_keys(at + 1);
                }
                let column = self.columns.start + at * PAIR;
                if column < seen.end && seen.start < column + PAIR {
                    self.score(flats.len(), at, lines);
                }
            }
            let seen = if seen.is_empty() { 0..0 } else { blocks(&seen) };
            self.weights(flats.clone(), seen.clone(), lines, out);
            self.weigh(flats, seen, lines, out.acc);
        }
    }

    /// Puts the queries of these flat rows in order.
    #[target_feature(enable = "avx512f")]
    fn arrange_queries(&mut self, flats: Range<usize>) {
        let dim = self.chunk.shape.key_dim;
        let queries = self.chunk.q[flats.start * dim..flats.end * dim].chunks_exact(dim);
        for (at, query) in queries.enumerate() {
            arrange_row(query, at, &mut self.memory.queries);
        }
    }

    /// Puts the keys of 32 columns in order.
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
    fn arrange_keys(&mut self, at: usize) {
        // SAFETY: this function has the features.
        let s = unsafe { Avx512::assume() };
        let (chunk, n_blocks) = (self.chunk, self.chunk.shape.key_dim / BLOCK);
        let keys = &mut self.memory.keys[at * n_blocks..(at + 1) * n_blocks];
        let columns = self.columns.start + at * PAIR..self.columns.end;
        for (at, column) in columns.step_by(LANES).take(2).enumerate() {
            let position = chunk.start + column;
            let group = chunk.key_group(position);
            // They are gathered at the beginning of a chunk.
            chunk.prefetch_coming_scales(s, position);
            chunk.prefetch_coming_value_scales(s, position);
            arrange_keys(&group, chunk.after_keys(&group), at, keys);
        }
    }

    /// Scores of `n_flat` rows for 32 columns.
    #[target_feature(enable = "avx512f")]
    fn score(&mut self, n_flat: usize, at: usize, scores: &mut [f32]) {
        let column = self.columns.start + at * PAIR;
        let n_blocks = self.chunk.shape.key_dim / BLOCK;
        let keys = &self.memory.keys[at * n_blocks..(at + 1) * n_blocks];
        let queries = Rows::in_tiles(n_flat, &self.memory.queries[..n_blocks]);
        let to = scores[LANES + column..].as_mut_ptr();
        let has_second = column + LANES < self.columns.end;
        // SAFETY: there are as many blocks of queries as of keys; lines have every column.
        unsafe { self.tiles.multiply(queries, keys, to, SCORE_LINE, has_second) };
    }

    /// Turns the scores of these flat rows into weights, in the order of tiles, at the beginning of
    /// their lines; `seen` are the blocks that any of them sees.
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
    fn weights(
        &mut self,
        flats: Range<usize>,
        seen: Range<usize>,
        lines: &mut [f32],
        out: &mut State<'_>,
    ) {
        // SAFETY: this function has the features.
        let s = unsafe { Avx512::assume() };
        let chunk = self.chunk;
        let [key_scales, value_scales] = &self.memory.scales;
        let lines = lines.chunks_mut(LINES * SCORE_LINE);
        for (first, lines) in flats.clone().step_by(LINES).zip(lines) {
            let flats = first..(first + LINES).min(flats.end);
            if T::HAS_SCALES {
                for line in lines.chunks_exact_mut(SCORE_LINE) {
                    let columns = seen.start * BLOCK..seen.end * BLOCK;
                    scale_scores(&key_scales[columns.clone()], &mut line[LANES..][columns]);
                }
            }
            largest(s, chunk, flats.clone(), lines, out.max);
            for (flat, line) in flats.zip(lines.chunks_exact_mut(SCORE_LINE)) {
                let (low, high) = chunk.visible(flat);
                let max = out.max[flat];
                if low == seen.start * BLOCK && high == seen.end * BLOCK && max > f32::NEG_INFINITY
                {
                    let line = &mut line[LANES + low..LANES + high];
                    out.sum[flat] = if T::HAS_SCALES {
                        arranged_weights::<true>(s, line, max, &value_scales[low..high])
                    } else {
                        arranged_weights::<false>(s, line, max, &[])
                    };
                    continue;
                }
                if !T::HAS_SCALES {
                    let weights = Weights { line, low, high, max, precision: Rounded };
                    out.sum[flat] = s.apart(weights);
                } else {
                    let weights = Weights { line, low, high, max, precision: BeforeScales };
                    out.sum[flat] = s.apart(weights);
                    let weights = &mut line[LANES..][low..high];
                    for (weight, &scale) in weights.iter_mut().zip(&value_scales[low..high]) {
                        *weight = scaled(*weight, scale);
                    }
                }
                let line = &mut line[LANES..][seen.start * BLOCK..seen.end * BLOCK];
                // Softmax has zeros in the rest of a sixteen that is partly seen.
                if low < high {
                    line[..low / LANES * LANES - seen.start * BLOCK].fill(0.0);
                    line[high.next_multiple_of(LANES) - seen.start * BLOCK..].fill(0.0);
                } else {
                    line.fill(0.0);
                }
                arrange_in_place(line);
            }
        }
    }

    /// Sets the sums of these flat rows to their weighted values. The first rows put the values in
    /// order.
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
    fn weigh(&mut self, flats: Range<usize>, seen: Range<usize>, lines: &[f32], acc: &mut [f32]) {
        let padded = self.chunk.shape.padded_dim();
        for first in (0..padded).step_by(PAIR) {
            let values = &mut self.memory.values[first / PAIR * MOST_BLOCKS..][..MOST_BLOCKS];
            if flats.start == 0 {
                for block in blocks(&self.columns) {
                    for (first, values) in (first..padded).step_by(LANES).zip(&mut values[block]) {
                        arrange_values(&self.blocks[block], first, values);
                    }
                }
            }
            let weights = Rows::in_lines(flats.len(), &lines[LANES + seen.start * BLOCK..]);
            let to = acc[flats.start * padded + first..].as_mut_ptr();
            let has_second = first + LANES < padded;
            let values = &values[seen.clone()];
            // SAFETY: lines have weights of the blocks that are seen; a sum has `padded` elements.
            unsafe { self.tiles.multiply(weights, values, to, padded, has_second) };
        }
    }
}

/// Makes room for `n` pairs of tiles.
fn grow(memory: &mut Vec<[Stored; 2]>, n: usize) {
    if memory.len() < n {
        memory.resize(n, [Stored::ZERO; 2]);
    }
}

/// Multiplies the scores of whole blocks by the scales of their keys.
#[inline]
#[target_feature(enable = "avx512f")]
fn scale_scores(scales: &[f32], scores: &mut [f32]) {
    for (score, scale) in scores.iter_mut().zip(scales) {
        *score *= scale;
    }
}

/// Turns the scores of whole blocks into weights, in order, in the first half of their place, and
/// returns their sum: what [`Weights`] gives. Where they are `SCALED`, weights are then multiplied by
/// the scales of their values, as [`scaled`] does.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
fn arranged_weights<const SCALED: bool>(
    s: Avx512,
    scores: &mut [f32],
    max: f32,
    scales: &[f32],
) -> f32 {
    assert!(!SCALED || scales.len() == scores.len(), "invariant: a scale for each column");
    let from = s.splat(max);
    let mut sum = s.splat(0.0);
    let first = scores.as_mut_ptr();
    for block in 0..scores.len() / BLOCK {
        // SAFETY: the block is in the line, and its place in order is not after it. (Slices, whose
        // bounds are checked, took 3 % more time of attention.)
        unsafe {
            let scores = [first.add(block * BLOCK), first.add(block * BLOCK + HALF)];
            let differences = scores.map(|scores| s.sub(_mm512_loadu_ps(scores), from));
            let halves = if SCALED {
                let [low, high] = differences.map(|x| exp_near_bf16(s, x));
                sum = s.add(s.add(sum, low), high);
                let scales = scales.as_ptr().add(block * BLOCK);
                [scaled_16(low, scales), scaled_16(high, scales.add(HALF))]
            } else {
                let [low, high] = differences.map(|x| exp_bf16(s, x));
                sum = s.add(s.add(sum, low), high);
                [low, high]
            };
            arrange_halves(halves, &mut *first.add(block * LANES).cast());
        }
    }
    s.sum(sum)
}

/// [`scaled`] for sixteen weights, but for the lower halves, which are arbitrary.
///
/// # Safety
///
/// There are sixteen scales.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn scaled_16(weights: __m512, scales: *const f32) -> __m512 {
    // SAFETY: the caller vouches for the scales.
    let product = unsafe { _mm512_mul_ps(weights, _mm512_loadu_ps(scales)) };
    let half = _mm512_set1_epi32(HALF_BF16 as i32);
    _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(product), half))
}
