//! Chunks of many flat rows on AVX-512: keys and values are widened once for all of them.
//!
//! ```text
//! keys   as f32:  for each 64 columns, for each 64 elements    [element][column]       16 KiB each
//! values as f32:  for each 64 elements, for each 64 columns    [column][element]       16 KiB each
//!
//! for each 48 flat rows:
//!     for each 16 KiB of keys, for each 6 rows:    score[row][column] += Σ q[row][element] · key
//!     weights, in the lines of scores; 0 in the columns that a row does not see      (softmax.rs)
//!     for each 16 KiB of values, for each 6 rows:  acc[row][element] += Σ weight[row][column] · value
//! ```
//!
//! Terms and their order are those of `score.rs` and `weigh.rs`, so that the bits are the same: a
//! column that a row does not see has the weight 0, and a sum, which begins at +0, keeps its bits when
//! ±0 is added to it. An infinite or NaN value of such a column would reach the row; a chunk with such
//! a value is computed without this kernel.
//!
//! The loops of those files widen each key and value anew for every four rows, and take 92 instructions
//! for 32 multiply-adds; here there are 36 for 24 ([`crate::simd::products`]), which take 70 % of the
//! time; the exponentials take a tenth. Two threads of an Ice Lake, whose peak in f32 is 390 to 418
//! GFLOP/s, 512 rows of 32 heads of 64 elements on 8, medians of five runs in turn (three for f16 and
//! fp8), without and with this kernel:
//!
//! ```text
//!                                 bf16         f32          int8         f16          fp8
//! behind no tokens                92  134      101  131     102  145
//! behind 3,584 tokens            122  161      124  167     107  175     144  189     87  197
//! the same, 128 elements         138  185                   122  182
//! ```
//!
//! From 16 flat rows on it is faster; with 12 it is as fast. Items of 128 to 512 flat rows are equal, of
//! 64 a tenth slower. Tried and dropped: scores of all rows of an item, then weights, then values (as
//! fast, but keys and values are then read again for each 64 rows, or lines of scores leave the
//! second-level cache); the same loop written over [`Simd`] (sums are stored with each term).

use std::cell::RefCell;
use std::ops::Range;

use super::chunk::{Chunk, SCORE_LINE, Vectors, gather_scales, weights};
use super::merge::State;
use super::run::with_floats;
use super::weigh::scaled;
use super::{BLOCK, CHUNK, HALF};
use crate::ops::matmul::row_chunks;
use crate::simd::products::{Rows, in_order, multiply};
use crate::simd::{Avx512, LANES, Simd};

/// Most flat rows of an item.
pub(super) const FLAT_ROWS: usize = 192;
/// Fewest flat rows for which this kernel is faster.
const LEAST_ROWS: usize = 16;
/// Flat rows whose lines of scores are in the first-level cache together, or nearly so.
pub(super) const BATCH: usize = 48;
/// Most rows that are multiplied at a time.
const ROWS: usize = 6;
/// Terms of a sum that are multiplied at a time.
const TERMS: usize = 2 * BLOCK;
/// Most vectors of sums of a row.
const VECTORS: usize = 4;

thread_local! {
    /// Keys and values of the chunk at hand, widened.
    static WIDENED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Computes the chunk into `out`; `scratch` as for the other kernels.
///
/// # Safety
///
/// This CPU has the features below.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) unsafe fn chunk<T: Vectors>(
    chunk: &Chunk<'_, T>,
    scratch: &mut [f32],
    out: &mut State<'_>,
) {
    let (low, high) = chunk.seen(0..chunk.n_flat());
    if low >= high || !chunk.has_blocks_for(LEAST_ROWS, high) {
        // SAFETY: this function has the features of the shell.
        return unsafe { T::ON_AVX512(chunk, scratch, out) };
    }
    let columns = low / BLOCK * BLOCK..high.next_multiple_of(BLOCK);
    let n_floats = columns.len() * (chunk.shape.key_dim + chunk.shape.padded_dim());
    with_floats(&WIDENED, n_floats, |widened| {
        if !attend(chunk, columns, widened, scratch, out) {
            // SAFETY: this function has the features of the shell.
            unsafe { T::ON_AVX512(chunk, scratch, out) };
        }
    });
}

/// Computes the chunk, unless a value that some row does not see is infinite or NaN; `columns` are whole
/// blocks. Returns whether it did so.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
fn attend<T: Vectors>(
    chunk: &Chunk<'_, T>,
    columns: Range<usize>,
    widened: &mut [f32],
    scratch: &mut [f32],
    out: &mut State<'_>,
) -> bool {
    // SAFETY: this function has the features.
    let s = unsafe { Avx512::assume() };
    let (n_flat, padded) = (chunk.n_flat(), chunk.shape.padded_dim());
    let (keys, values) = widened.split_at_mut(columns.len() * chunk.shape.key_dim);
    widen_keys(s, chunk, columns.clone(), keys);
    if !widen_values(s, chunk, columns.clone(), values) {
        return false;
    }
    let mut scales = [[chunk.scale; CHUNK], [1.0; CHUNK]];
    if T::HAS_SCALES {
        let (low, high) = chunk.seen(0..n_flat);
        gather_scales(chunk, low / LANES * LANES..high, &mut scales);
    }
    let [of_keys, of_values] = &scales;
    out.acc.fill(0.0);
    for first in (0..n_flat).step_by(BATCH) {
        let flats = first..(first + BATCH).min(n_flat);
        let lines = &mut scratch[..flats.len() * SCORE_LINE];
        score(chunk, flats.clone(), columns.clone(), keys, lines);
        if T::HAS_SCALES || !T::BF16_PRODUCTS {
            scale(of_keys, columns.clone(), lines);
        }
        weights(s, chunk, flats.clone(), lines, out);
        if T::HAS_SCALES {
            scale_weights(chunk, flats.clone(), of_values, lines);
        }
        clear_unseen(chunk, flats.clone(), columns.clone(), lines);
        let acc = &mut out.acc[flats.start * padded..flats.end * padded];
        weigh(columns.clone(), chunk.seen(flats), values, lines, acc);
    }
    true
}

/// `n` vectors in parts for which there are kernels.
pub(super) fn parts(n: usize) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let len = match n - start {
            0 => return None,
            VECTORS.. => VECTORS,
            2.. => 2,
            1 => 1,
        };
        start += len;
        Some(start - len..start)
    })
}

/// Widens the keys of `columns`; zeros where the sequence has ended.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
fn widen_keys<T: Vectors>(
    s: Avx512,
    chunk: &Chunk<'_, T>,
    columns: Range<usize>,
    widened: &mut [f32],
) {
    let dim = chunk.shape.key_dim;
    for vectors in parts(columns.len() / LANES) {
        let n_vectors = vectors.len();
        let terms = &mut widened[vectors.start * LANES * dim..][..n_vectors * LANES * dim];
        let terms = terms.as_chunks_mut().0;
        for (v, vector) in vectors.enumerate() {
            let position = chunk.start + columns.start + vector * LANES;
            if position >= chunk.seq_end {
                terms[v..].iter_mut().step_by(n_vectors).for_each(|term| *term = [0.0; LANES]);
                continue;
            }
            let group = chunk.key_group(position);
            let next = chunk.after_keys(&group);
            chunk.prefetch_value_scales(s, position);
            for (at, line) in group.keys.iter().enumerate() {
                s.prefetch(line.as_ptr().cast::<u8>().wrapping_add(next));
                s.store(T::load(s, line), &mut terms[in_order(at, true) * n_vectors + v]);
            }
        }
    }
}

/// Widens the values of `columns`; zeros where the sequence has ended. Returns whether all are finite
/// that some row does not see.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
fn widen_values<T: Vectors>(
    s: Avx512,
    chunk: &Chunk<'_, T>,
    columns: Range<usize>,
    widened: &mut [f32],
) -> bool {
    let mut by_all = columns.clone();
    for flat in (0..chunk.n_flat()).step_by(chunk.group) {
        let (low, high) = chunk.visible(flat);
        by_all = by_all.start.max(low)..by_all.end.min(high);
    }
    let n_vectors = chunk.shape.padded_dim() / LANES;
    let mut zero = s.splat(0.0);
    for column in columns.clone().step_by(HALF) {
        let position = chunk.start + column;
        let lines = match position < chunk.seq_end {
            true => chunk.values(position, position + HALF).0,
            false => &[],
        };
        let next = chunk.to_coming(lines.as_flattened().as_ptr().cast(), position);
        chunk.prefetch_coming_scales(s, position);
        let is_seen_by_all = by_all.start <= column && column + HALF <= by_all.end;
        for vectors in parts(n_vectors) {
            let terms = &mut widened[vectors.start * LANES * columns.len()..];
            let terms = &mut terms[(column - columns.start) * vectors.len() * LANES..];
            let terms = &mut terms.as_chunks_mut().0[..HALF * vectors.len()];
            if lines.is_empty() {
                terms.fill([0.0; LANES]);
            }
            for (at, line) in lines.chunks_exact(n_vectors).enumerate() {
                let terms = &mut terms[in_order(at, true) * vectors.len()..][..vectors.len()];
                for (line, term) in line[vectors.clone()].iter().zip(terms) {
                    let value = T::load(s, line);
                    s.prefetch(line.as_ptr().cast::<u8>().wrapping_add(next));
                    s.store(value, term);
                    if !is_seen_by_all {
                        zero = s.fma(value, s.splat(0.0), zero);
                    }
                }
            }
        }
    }
    s.sum(zero) == 0.0
}

/// Scores of these flat rows for `columns`.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
fn score<T: Vectors>(
    chunk: &Chunk<'_, T>,
    flats: Range<usize>,
    columns: Range<usize>,
    keys: &[f32],
    lines: &mut [f32],
) {
    let dim = chunk.shape.key_dim;
    let (low, high) = chunk.seen(flats.clone());
    for vectors in parts(columns.len() / LANES) {
        let n_vectors = vectors.len();
        let column = columns.start + vectors.start * LANES;
        if high <= column || column + n_vectors * LANES <= low {
            continue;
        }
        let keys = &keys[vectors.start * LANES * dim..][..n_vectors * LANES * dim];
        for (start, terms) in (0..dim).step_by(TERMS).zip(keys.chunks(TERMS * n_vectors * LANES)) {
            for rows in row_chunks(flats.len(), ROWS) {
                let n_rows = rows.len();
                let rows = Rows {
                    factors: &chunk.q[(flats.start + rows.start) * dim + start..],
                    stride: dim,
                    sums: &mut lines[rows.start * SCORE_LINE + LANES + column..],
                    sum_stride: SCORE_LINE,
                    adds: start > 0,
                };
                products(n_rows, n_vectors, rows, terms);
            }
        }
    }
}

/// Multiplies the scores of `columns` by what is not in the queries.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn scale(scales: &[f32; CHUNK], columns: Range<usize>, lines: &mut [f32]) {
    for line in lines.chunks_exact_mut(SCORE_LINE) {
        for (score, scale) in
            line[LANES..][columns.clone()].iter_mut().zip(&scales[columns.clone()])
        {
            *score *= scale;
        }
    }
}

/// Multiplies the weights that these flat rows see by the scales of their values.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn scale_weights<T: Vectors>(
    chunk: &Chunk<'_, T>,
    flats: Range<usize>,
    scales: &[f32; CHUNK],
    lines: &mut [f32],
) {
    for (flat, line) in flats.zip(lines.chunks_exact_mut(SCORE_LINE)) {
        let (low, high) = chunk.visible(flat);
        for (weight, &scale) in line[LANES..][low..high].iter_mut().zip(&scales[low..high]) {
            *weight = scaled(*weight, scale);
        }
    }
}

/// Sets the weights of `columns` that a row does not see to 0.
pub(super) fn clear_unseen<T: Vectors>(
    chunk: &Chunk<'_, T>,
    flats: Range<usize>,
    columns: Range<usize>,
    lines: &mut [f32],
) {
    for (flat, line) in flats.zip(lines.chunks_exact_mut(SCORE_LINE)) {
        let (low, high) = chunk.visible(flat);
        let line = &mut line[LANES..][..columns.end];
        line[columns.start..low.max(columns.start)].fill(0.0);
        line[high.max(columns.start)..].fill(0.0);
    }
}

/// Adds the weighted values of `columns` to `acc` `[rows, padded]`; `low..high` are those of which any
/// row sees one.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
fn weigh(
    columns: Range<usize>,
    (low, high): (usize, usize),
    values: &[f32],
    lines: &[f32],
    acc: &mut [f32],
) {
    let n_rows = lines.len() / SCORE_LINE;
    let padded = acc.len() / n_rows;
    for vectors in parts(padded / LANES) {
        let (first, n_vectors) = (vectors.start * LANES, vectors.len());
        let values = &values[first * columns.len()..][..n_vectors * LANES * columns.len()];
        for (column, terms) in
            columns.clone().step_by(TERMS).zip(values.chunks(TERMS * n_vectors * LANES))
        {
            if high <= column || column + TERMS <= low {
                continue;
            }
            for rows in row_chunks(n_rows, ROWS) {
                let n_rows = rows.len();
                let rows = Rows {
                    factors: &lines[rows.start * SCORE_LINE + LANES + column..],
                    stride: SCORE_LINE,
                    sums: &mut acc[rows.start * padded + first..],
                    sum_stride: padded,
                    adds: true,
                };
                products(n_rows, n_vectors, rows, terms);
            }
        }
    }
}

/// Adds the products of `n_rows` rows with terms of `n_vectors` vectors to their sums.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
fn products(n_rows: usize, n_vectors: usize, rows: Rows<'_>, terms: &[f32]) {
    let terms = terms.as_chunks().0;
    match n_vectors {
        4 => products_of::<4>(n_rows, rows, terms.as_chunks().0),
        2 => products_of::<2>(n_rows, rows, terms.as_chunks().0),
        _ => products_of::<1>(n_rows, rows, terms.as_chunks().0),
    }
}

/// Adds the products of `n_rows` rows with all terms to their sums.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
fn products_of<const V: usize>(n_rows: usize, rows: Rows<'_>, terms: &[[[f32; LANES]; V]]) {
    match n_rows {
        1 => multiply::<1, V, true>(rows, terms),
        2 => multiply::<2, V, true>(rows, terms),
        3 => multiply::<3, V, true>(rows, terms),
        4 => multiply::<4, V, true>(rows, terms),
        5 => multiply::<5, V, true>(rows, terms),
        6 => multiply::<6, V, true>(rows, terms),
        _ => unreachable!("invariant: a chunk of {n_rows} rows has a kernel"),
    }
}
