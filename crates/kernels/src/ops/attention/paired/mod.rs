//! Chunks of bf16, fp8 and int8 on AVX-512 BF16, where one instruction multiplies a pair of terms.
//!
//! ```text
//! block      32 terms by 64 columns or elements:     [pair][4 vectors][16] pairs of bf16, 4 KiB
//!
//! for each 48 flat rows:
//!   scores    for each 64 columns, for each 32 elements:   block of keys
//!                 for each 6 rows:    score[row][column] += Σ q[row][pair] · key     (simd/pairs.rs)
//!   weights   in the lines of scores; 0 in the columns that a row does not see; then as bf16 in the
//!             first half of each line
//!   values    for each 32 columns, for each 64 elements:   block of values
//!                 for each 6 rows:    acc[row][element] += Σ weight[row][pair] · value
//! ```
//!
//! Terms and their order are those of `score.rs` and `weigh.rs`, so that the bits are the same: the
//! instruction adds the second product of a pair and then the first, and factors are so large that
//! it never meets a number which it would take for zero. A column that a row does not see has the
//! weight 0. An infinite or NaN value of such a column would reach the row; a chunk with such a
//! value is computed without this kernel.
//!
//! Every processor with the instruction has VBMI, too, but Cooper Lake, which multiplies floats.
//!
//! Few rows, as those of a decoded token, multiply keys and values that are put in order in
//! registers ([`direct`]). More rows put them in order in memory first ([`blocks`]); up to 48 rows
//! take each block from the first-level cache at once, and more keep the blocks of the chunk for
//! all of them.
//!
//! Two threads of a Zen 4, whose peak is 236 GFLOP/s by floats and 472 by pairs; medians of three
//! runs in turn with and without this kernel, while memory gave 27 GB/s. Decoding is behind 4,096
//! tokens, microseconds; prompts are 512 rows of 32 heads on 8, behind 3,584 tokens, GFLOP/s:
//!
//! ```text
//!                          bf16         fp8          int8
//! 32 heads of 64 on 8     457  418     460  356     484  324
//! 14 heads of 64 on 2     130  108     191  124     191  139
//! 32 heads of 64 on 4     323  253     462  327     427  340
//! 16 heads of 256 on 4    780  808     850  734     682  533
//! 32 heads of 128 on 2    637  391     585  472     581  382
//! prompts, 64 elements    157  212     138  219     134  209
//! prompts, 128            143  213     136  252      96  233
//! ```
//!
//! A later version makes pairs of fp8 by tables (`simd/byte_floats.rs`) and not by way of half
//! precision and floats. Decoding takes, in the order of the table, 271 in place of 347 us, 89 of
//! 107, 215 of 254, 386 of 553 and 309 of 378 (medians of three runs in turn); prompts, which put
//! each key in order once for many rows, are the same.
//!
//! In a quiet minute prompts of bf16 reach 260 GFLOP/s in place of 172 (64 elements), 55 % of the
//! peak.
//!
//! Tried and dropped: blocks in memory for the rows of one decoded token, too (their prefetches
//! come in bursts, and the memory waits while blocks are multiplied: 10 to 20 % slower than
//! floats); every second prefetch left out (a quarter slower); besides, prefetches to the
//! first-level cache 256 to 1,024 bytes ahead (no faster to 15 % slower); keys of one group at a
//! time instead of four (equal); lines prefetched in the order of memory while values are
//! multiplied, 64 elements at a time (15 % slower). One or two heads per KV head, whose reads are
//! all that counts, are up to a fifth slower than with floats and do not come here.

mod blocks;
mod direct;

use std::cell::RefCell;
use std::ops::Range;

use super::chunk::{Chunk, SCORE_LINE, Scales, gather_scales, weights};
use super::interleaved::{Interleave, Values, blocks as blocks_of, unseen_are_finite};
use super::merge::State;
use super::widened::{self, BATCH, clear_unseen, parts, scale, scale_weights};
use super::{BLOCK, CHUNK};
use crate::ops::matmul::{bf16_pays, row_chunks};
use crate::simd::byte_floats;
use crate::simd::pairs::{Terms, multiply, narrow_in_place};
use crate::simd::products::Rows;
use crate::simd::{Avx512, LANES};
use blocks::{Blocks, Group, arrange_keys, arrange_values};
use direct::{Keys, Lines};

/// Fewest flat rows for which this kernel is faster.
const LEAST_ROWS: usize = 3;
/// Most rows that are multiplied at a time.
const ROWS: usize = 6;
/// Most vectors of a block.
const VECTORS: usize = 4;
/// Pairs of a block.
const PAIRS: usize = BLOCK / 2;

/// Memory of a thread.
struct Scratch {
    /// Queries of all flat rows, `[n_flat][key_dim / 2]`.
    queries: Vec<f32>,
    /// Blocks of keys, `[64 columns][key_dim / 32]`.
    keys: Vec<f32>,
    /// Blocks of values, `[32 columns][64 elements]`.
    values: Vec<f32>,
    /// Scales of the keys and of the values of the columns, where their type has any.
    scales: Scales,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = const {
        RefCell::new(Scratch {
            queries: Vec::new(),
            keys: Vec::new(),
            values: Vec::new(),
            scales: [[0.0; CHUNK]; 2],
        })
    };
}

/// Makes memory at least this large.
fn grow(memory: &mut Vec<f32>, n: usize) {
    if memory.len() < n {
        memory.resize(n, 0.0);
    }
}

/// Computes the chunk into `out`, with pairs where that is faster than with floats.
///
/// # Safety
///
/// This CPU has the features of [`widened::chunk`].
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) unsafe fn chunk_where_faster<T: Interleave>(
    of: &Chunk<'_, T>,
    scratch: &mut [f32],
    out: &mut State<'_>,
) {
    // SAFETY: this function has the features, and where pairs pay there are their instructions.
    unsafe {
        if bf16_pays() && byte_floats::is_supported() {
            chunk(of, scratch, out)
        } else {
            widened::chunk(of, scratch, out)
        }
    }
}

/// Computes the chunk into `out`; `scratch` as for the other kernels.
///
/// # Safety
///
/// This CPU has the features below.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi")]
pub(super) unsafe fn chunk<T: Interleave>(
    chunk: &Chunk<'_, T>,
    scratch: &mut [f32],
    out: &mut State<'_>,
) {
    let (low, high) = chunk.seen(0..chunk.n_flat());
    if low >= high
        || !chunk.has_blocks_for(LEAST_ROWS, high)
        || !unseen_are_finite(chunk, low..high)
    {
        // SAFETY: this function has the features of the other kernel.
        return unsafe { widened::chunk(chunk, scratch, out) };
    }
    let columns = low / BLOCK * BLOCK..high.next_multiple_of(BLOCK);
    SCRATCH.with_borrow_mut(|memory| attend(chunk, columns, memory, scratch, out));
}

/// Computes the chunk; `columns` are whole blocks.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi")]
fn attend<T: Interleave>(
    chunk: &Chunk<'_, T>,
    columns: Range<usize>,
    memory: &mut Scratch,
    scratch: &mut [f32],
    out: &mut State<'_>,
) {
    // SAFETY: this function has the features.
    let s = unsafe { Avx512::assume() };
    let (n_flat, padded, dim) = (chunk.n_flat(), chunk.shape.padded_dim(), chunk.shape.key_dim);
    let Scratch { queries, keys, values, scales } = memory;
    // A single batch keeps no blocks.
    let keeps = n_flat > BATCH;
    let per_column = if keeps { columns.len() / 2 } else { PAIRS };
    grow(queries, chunk.q.len());
    grow(keys, per_column * dim.max(VECTORS * LANES));
    grow(values, per_column * padded.max(VECTORS * LANES));
    let queries = &mut queries[..chunk.q.len()];
    queries.copy_from_slice(chunk.q);
    for query in queries.chunks_exact_mut(dim) {
        narrow_in_place(query);
    }
    if T::HAS_SCALES {
        let (low, high) = chunk.seen(0..n_flat);
        gather_scales(chunk, low / LANES * LANES..high, scales);
    }
    let [of_keys, of_values] = &*scales;
    out.acc.fill(0.0);
    for first in (0..n_flat).step_by(BATCH) {
        let flats = first..(first + BATCH).min(n_flat);
        let lines = &mut scratch[..flats.len() * SCORE_LINE];
        let (arranges, is_direct) = (first == 0, n_flat <= ROWS * size_of::<T>());
        let keys = Blocks { memory: keys, keeps, arranges, is_direct };
        score(chunk, flats.clone(), columns.clone(), (queries, keys), lines);
        if T::HAS_SCALES {
            scale(of_keys, columns.clone(), lines);
        }
        weights(s, chunk, flats.clone(), lines, out);
        if T::HAS_SCALES {
            scale_weights(chunk, flats.clone(), of_values, lines);
        }
        clear_unseen(chunk, flats.clone(), columns.clone(), lines);
        for line in lines.chunks_exact_mut(SCORE_LINE) {
            narrow_in_place(&mut line[LANES..][columns.clone()]);
        }
        let acc = &mut out.acc[flats.start * padded..flats.end * padded];
        let values = Blocks { memory: values, keeps, arranges, is_direct };
        weigh(chunk, flats, columns.clone(), (lines, values), acc);
    }
}

/// Scores of these flat rows for `columns`.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi")]
fn score<T: Interleave>(
    chunk: &Chunk<'_, T>,
    flats: Range<usize>,
    columns: Range<usize>,
    (queries, mut keys): (&[f32], Blocks<'_>),
    lines: &mut [f32],
) {
    for vectors in parts(columns.len() / LANES) {
        let n_before = vectors.start * LANES * chunk.shape.key_dim / 2;
        let part = Part { flats: flats.clone(), first: columns.start + vectors.start * LANES };
        let keys = (&mut keys, n_before);
        match vectors.len() {
            4 => score_part::<T, 4>(chunk, part, queries, keys, lines),
            2 => score_part::<T, 2>(chunk, part, queries, keys, lines),
            _ => score_part::<T, 1>(chunk, part, queries, keys, lines),
        }
    }
}

/// Flat rows, and the first of the columns at hand.
struct Part {
    flats: Range<usize>,
    first: usize,
}

/// Scores of `V` times sixteen columns, whose blocks begin after `n_before` floats.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi")]
fn score_part<T: Interleave, const V: usize>(
    chunk: &Chunk<'_, T>,
    part: Part,
    queries: &[f32],
    (keys, n_before): (&mut Blocks<'_>, usize),
    lines: &mut [f32],
) {
    // SAFETY: this function has the features.
    let s = unsafe { Avx512::assume() };
    let dim = chunk.shape.key_dim;
    let first = part.first;
    let (low, high) = chunk.seen(part.flats.clone());
    let is_seen = first < high && low < first + V * LANES;
    let mut groups = [const { None }; V];
    for (v, group) in groups.iter_mut().enumerate() {
        let position = chunk.start + first + v * LANES;
        if keys.arranges && position < chunk.seq_end {
            let keys = chunk.key_group(position);
            chunk.prefetch_value_scales(s, position);
            *group = Some(Group { lines: keys.keys, next: chunk.after_keys(&keys) });
        }
    }
    if keys.is_direct
        && let Some(keys) = Keys::of(&groups)
    {
        return add_scores(&part, (queries, dim, 0), keys, lines);
    }
    for start in (0..dim).step_by(BLOCK) {
        let arranges = keys.arranges;
        let block = keys.block::<V>(n_before + start / 2 * V * LANES);
        if arranges {
            arrange_keys(&groups, start, block);
        }
        if is_seen {
            add_scores(&part, (queries, dim, start), &block[..], lines);
        }
    }
}

/// Adds the products of queries with keys, the elements from `start` on, to the scores; the first
/// element begins them.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi")]
fn add_scores<const V: usize>(
    Part { flats, first }: &Part,
    (queries, dim, start): (&[f32], usize, usize),
    keys: impl Terms<V>,
    lines: &mut [f32],
) {
    for rows in row_chunks(flats.len(), ROWS) {
        let n_rows = rows.len();
        let rows = Rows {
            factors: &queries[(flats.start + rows.start) * dim + start / 2..],
            stride: dim,
            sums: &mut lines[rows.start * SCORE_LINE + LANES + first..],
            sum_stride: SCORE_LINE,
            adds: start > 0,
        };
        products(n_rows, rows, keys);
    }
}

/// Adds the weighted values of `columns` to `acc` `[flats, padded]`; weights are pairs in the first
/// half of `columns` of their lines.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi")]
fn weigh<T: Interleave>(
    chunk: &Chunk<'_, T>,
    flats: Range<usize>,
    columns: Range<usize>,
    (lines, mut values): (&[f32], Blocks<'_>),
    acc: &mut [f32],
) {
    // SAFETY: this function has the features.
    let s = unsafe { Avx512::assume() };
    let padded = chunk.shape.padded_dim();
    let (low, high) = chunk.seen(flats);
    for (idx, of) in blocks_of(&columns).enumerate() {
        let of_block = if values.arranges { Values::of(chunk, of) } else { Values::NONE };
        if values.arranges {
            for half in 0..2 {
                let position = chunk.start + of * BLOCK + half * LANES;
                chunk.prefetch_coming_scales(s, position);
            }
        }
        let is_seen = of * BLOCK < high && low < (of + 1) * BLOCK;
        let weights = is_seen.then(|| &lines[LANES + columns.start + idx * PAIRS..]);
        for vectors in parts(padded / LANES) {
            let first = vectors.start * LANES;
            let values = (&of_block, &mut values, (idx * padded + first) * PAIRS);
            match vectors.len() {
                4 => weigh_part::<T, 4>(values, first, padded, weights, acc),
                2 => weigh_part::<T, 2>(values, first, padded, weights, acc),
                _ => weigh_part::<T, 1>(values, first, padded, weights, acc),
            }
        }
    }
}

/// Adds the weighted values of a block, `V` times sixteen elements from `first` on, if it has
/// weights.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi")]
fn weigh_part<T: Interleave, const V: usize>(
    (of_block, values, n_before): (&Values<'_, T>, &mut Blocks<'_>, usize),
    first: usize,
    padded: usize,
    weights: Option<&[f32]>,
    acc: &mut [f32],
) {
    let (arranges, is_direct) = (values.arranges, values.is_direct);
    let is_direct = is_direct && of_block.has(0) && of_block.has(1);
    let block = values.block::<V>(n_before);
    if arranges && !is_direct {
        arrange_values(of_block, first, block);
    }
    let Some(weights) = weights else { return };
    for rows in row_chunks(acc.len() / padded, ROWS) {
        let n_rows = rows.len();
        let rows = Rows {
            factors: &weights[rows.start * SCORE_LINE..],
            stride: SCORE_LINE,
            sums: &mut acc[rows.start * padded + first..],
            sum_stride: padded,
            adds: true,
        };
        if is_direct {
            let terms = Lines::new(of_block, first, V * LANES, padded);
            products::<V>(n_rows, rows, terms);
        } else {
            products(n_rows, rows, &block[..]);
        }
    }
}

/// Adds the products of `n_rows` rows with terms to their sums.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi")]
fn products<const V: usize>(n_rows: usize, rows: Rows<'_>, terms: impl Terms<V>) {
    match n_rows {
        1 => multiply::<1, V>(rows, terms),
        2 => multiply::<2, V>(rows, terms),
        3 => multiply::<3, V>(rows, terms),
        4 => multiply::<4, V>(rows, terms),
        5 => multiply::<5, V>(rows, terms),
        6 => multiply::<6, V>(rows, terms),
        _ => unreachable!("invariant: {n_rows} rows have a kernel"),
    }
}
