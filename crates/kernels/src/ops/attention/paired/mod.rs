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
//! **Heads in turn.** Behind many tokens the heads of a decoded token take turns at each 64 keys and
//! at each 32 values ([`in_turn`]). The keys of all heads lie side by side, so that the processor
//! fetches them by itself, and values alone are prefetched, 32 tokens ahead. The same two threads,
//! microseconds of bf16 behind 32,768 tokens before and after, medians of five runs in turn while
//! memory gave 37 GB/s (left) and 33 GB/s (right):
//!
//! ```text
//! 16 heads of 256 on 4    4110  3820          16 heads of 128 on 8    4500  4130
//! 32 heads of 64 on 8     2350  2160          32 heads of 128 on 32  16990 16550
//! 32 heads of 128 on 8    5130  4220          32 heads of 64 on 16    4630  4450
//! ```
//!
//! Where the keys of all heads and 16 tokens are less than 16 KiB (32 heads of 64 on 4, 14 on 2), it
//! is 12 to 20 % slower, and 2 to 15 % with fp8 and int8, whose pairs take longer to make than
//! their bytes to read. Reading keys alone takes as long as memory needs, values alone 1.3 times
//! that; the exponentials take 3 %.
//!
//! Tried with it and dropped, all of them as fast from memory: queries gathered and made pairs of
//! once per row in place of once per chunk (4 % faster in cache); two vectors of values in order by
//! `vpermt2w`; beside the last values of a chunk the first keys of the next. In a program of its own,
//! values two or three blocks ahead, or all elements of a value at once for two rows, were equal, and
//! values prefetched to the first-level cache a sixth to a third slower.
//!
//! Later measurements of the same kind, 16 heads of 256 on 4 behind 32,768 tokens. Of 181 thousand
//! cycles for a chunk of 256 tokens and all heads, scores take 84, values 89 and exponentials 7.5; merging
//! takes 3 % more. Values that lie as `[64 elements][16 tokens]` would be read 13 % faster, and with their
//! keys 3 %; partial results that never leave the cache would save 2.6 %, and since chunks merge to spans
//! most of them do not. Not faster: values prefetched
//! to the first-level cache one part ahead, lines prefetched in the order of memory, blocks with 64 bytes to
//! 8 KiB between them, heads that lie in another order in each block. Keys of one or two groups at a
//! time are slower.
//!
//! Tried and dropped: blocks in memory for the rows of one decoded token, too (their prefetches
//! come in bursts, and the memory waits while blocks are multiplied: 10 to 20 % slower than
//! floats); every second prefetch left out (a quarter slower); besides, prefetches to the
//! first-level cache 256 to 1,024 bytes ahead (no faster to 15 % slower); keys of one group at a
//! time instead of four (equal); lines prefetched in the order of memory while values are
//! multiplied, 64 elements at a time (15 % slower). Without turns, one or two heads per KV
//! head are up to a fifth slower than with floats and do not come here.

mod blocks;
mod direct;

use std::cell::RefCell;
use std::ops::Range;

use half::bf16;

use super::chunk::{
    Chunk, InTurn, Kernels, SCORE_LINE, Scales, gather_scales, has_blocks, weights,
};
use super::interleaved::{Interleave, Values, unseen_are_finite};
use super::merge::{State, States};
use super::widened::{self, BATCH, clear_unseen, parts, scale, scale_weights};
use super::{BLOCK, CHUNK};
use crate::ops::kv::{KvDtype, KvShape};
use crate::ops::matmul::{bf16_pays, row_chunks};
use crate::simd::byte_floats;
use crate::simd::pairs::{Terms, multiply, narrow_in_place};
use crate::simd::products::Rows;
use crate::simd::{Avx512, LANES};
use blocks::{Blocks, Group, arrange_keys, arrange_values};
use direct::{Keys, Lines};

/// Fewest flat rows for which this kernel is faster.
const LEAST_ROWS: usize = 3;
/// Fewest bytes of keys, of all heads and sixteen tokens, for which heads take turns.
const LEAST_RUN: usize = 16 << 10;
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
    /// Scales of the keys and of the values of the columns of each chunk, where their type has any.
    scales: Vec<Scales>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = const {
        RefCell::new(Scratch {
            queries: Vec::new(),
            keys: Vec::new(),
            values: Vec::new(),
            scales: Vec::new(),
        })
    };
}

impl Scratch {
    /// Makes room for `n_chunks` of `n_flat` rows each, and for the blocks of `n_pairs` pairs of columns.
    fn grow(&mut self, shape: &KvShape, n_pairs: usize, (n_chunks, n_flat): (usize, usize)) {
        let grow = |memory: &mut Vec<f32>, n: usize| {
            if memory.len() < n {
                memory.resize(n, 0.0);
            }
        };
        let (dim, padded) = (shape.key_dim, shape.padded_dim());
        grow(&mut self.queries, n_chunks * n_flat * dim);
        grow(&mut self.keys, n_pairs * dim.max(VECTORS * LANES));
        grow(&mut self.values, n_pairs * padded.max(VECTORS * LANES));
        if self.scales.len() < n_chunks {
            self.scales.resize(n_chunks, [[0.0; CHUNK]; 2]);
        }
    }
}

/// The kernels of an element type on a CPU that has their instructions.
#[cfg(test)]
pub(super) const fn kernels<T: Interleave>() -> Kernels<T> {
    Kernels { chunk, in_turn: Some(InTurn { pays: has_blocks, chunks: in_turn }) }
}

/// The kernels of an element type, where they are faster than those with floats.
pub(super) const fn kernels_where_faster<T: Interleave>() -> Kernels<T> {
    let in_turn = InTurn { pays: pays_in_turn, chunks: in_turn };
    Kernels { chunk: chunk_where_faster, in_turn: Some(in_turn) }
}

/// Whether products of pairs are faster than those of floats.
fn pays() -> bool {
    bf16_pays() && byte_floats::is_supported()
}

/// See [`InTurn::pays`].
fn pays_in_turn(shape: &KvShape) -> bool {
    let n_bytes = shape.n_kv_heads * LANES * shape.key_dim * size_of::<bf16>();
    pays() && shape.dtype == KvDtype::Bf16 && has_blocks(shape) && n_bytes >= LEAST_RUN
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
    unsafe { if pays() { chunk(of, scratch, out) } else { widened::chunk(of, scratch, out) } }
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
    let (n_flat, padded) = (chunk.n_flat(), chunk.shape.padded_dim());
    // A single batch keeps no blocks.
    let keeps = n_flat > BATCH;
    memory.grow(chunk.shape, if keeps { columns.len() / 2 } else { PAIRS }, (1, n_flat));
    let Scratch { queries, keys, values, scales } = memory;
    begin(chunk, queries, &mut scales[0]);
    out.acc.fill(0.0);
    for first in (0..n_flat).step_by(BATCH) {
        let flats = first..(first + BATCH).min(n_flat);
        let lines = &mut scratch[..flats.len() * SCORE_LINE];
        let (arranges, is_direct) = (first == 0, n_flat <= ROWS * size_of::<T>());
        let mut keys = Blocks { memory: keys, keeps, arranges, is_direct };
        for vectors in parts(columns.len() / LANES) {
            score(chunk, flats.clone(), (&columns, vectors), (queries, &mut keys), lines);
        }
        turn_into_weights(chunk, (flats.clone(), &columns), &scales[0], lines, out);
        let acc = &mut out.acc[flats.start * padded..flats.end * padded];
        let mut values = Blocks { memory: values, keeps, arranges, is_direct };
        for idx in 0..columns.len() / BLOCK {
            weigh(chunk, flats.clone(), (&columns, idx), (lines, &mut values), acc);
        }
    }
}

/// Computes chunks of a decoded token; see [`InTurn`].
///
/// # Safety
///
/// This CPU has the features below.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi")]
unsafe fn in_turn<T: Interleave>(
    chunks: &[Chunk<'_, T>],
    scratch: &mut [f32],
    mut states: States<'_>,
) {
    let Some(first) = chunks.first() else { return };
    let (low, high) = first.seen(0..first.n_flat());
    let is_usual =
        |of: &Chunk<'_, T>| of.has_blocks_for(1, high) && unseen_are_finite(of, low..high);
    if low < high && chunks.iter().all(is_usual) {
        let columns = low / BLOCK * BLOCK..high.next_multiple_of(BLOCK);
        return SCRATCH.with_borrow_mut(|memory| {
            attend_in_turn(chunks, columns, memory, scratch, states);
        });
    }
    for (of, state) in chunks.iter().zip(states.each()) {
        let mut state = State::over(state, of.n_flat(), of.shape.padded_dim());
        // SAFETY: this function has the features of the other kernel.
        unsafe { chunk(of, scratch, &mut state) };
    }
}

/// Computes the chunks of [`in_turn`]; `columns` are whole blocks.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi")]
fn attend_in_turn<T: Interleave>(
    chunks: &[Chunk<'_, T>],
    columns: Range<usize>,
    memory: &mut Scratch,
    scratch: &mut [f32],
    mut states: States<'_>,
) {
    let most = chunks.iter().map(Chunk::n_flat).max().unwrap_or(0);
    let (shape, is_direct) = (chunks[0].shape, most <= ROWS * size_of::<T>());
    memory.grow(shape, PAIRS, (chunks.len(), most));
    let Scratch { queries, keys, values, scales } = memory;
    let per_queries = most * shape.key_dim;
    let mut keys = Blocks { memory: keys, keeps: false, arranges: true, is_direct };
    let mut values = Blocks { memory: values, keeps: false, arranges: true, is_direct };
    for ((chunk, queries), scales) in
        chunks.iter().zip(queries.chunks_exact_mut(per_queries)).zip(&mut *scales)
    {
        begin(chunk, queries, scales);
    }
    for vectors in parts(columns.len() / LANES) {
        let vectors = (&columns, vectors);
        for ((chunk, queries), lines) in chunks
            .iter()
            .zip(queries.chunks_exact(per_queries))
            .zip(scratch.chunks_exact_mut(most * SCORE_LINE))
        {
            let flats = 0..chunk.n_flat();
            score(chunk, flats, vectors.clone(), (queries, &mut keys), lines);
        }
    }
    for (((chunk, scales), lines), state) in chunks
        .iter()
        .zip(&*scales)
        .zip(scratch.chunks_exact_mut(most * SCORE_LINE))
        .zip(states.each())
    {
        let mut state = State::over(state, chunk.n_flat(), shape.padded_dim());
        state.acc.fill(0.0);
        let lines = &mut lines[..chunk.n_flat() * SCORE_LINE];
        turn_into_weights(chunk, (0..chunk.n_flat(), &columns), scales, lines, &mut state);
    }
    for idx in 0..columns.len() / BLOCK {
        for ((chunk, lines), state) in
            chunks.iter().zip(scratch.chunks_exact(most * SCORE_LINE)).zip(states.each())
        {
            let acc = State::over(state, chunk.n_flat(), shape.padded_dim()).acc;
            weigh(chunk, 0..chunk.n_flat(), (&columns, idx), (lines, &mut values), acc);
        }
    }
}

/// Copies the queries of a chunk as pairs, and the scales of its columns, where their type has any.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi")]
fn begin<T: Interleave>(chunk: &Chunk<'_, T>, queries: &mut [f32], scales: &mut Scales) {
    let queries = &mut queries[..chunk.q.len()];
    queries.copy_from_slice(chunk.q);
    for query in queries.chunks_exact_mut(chunk.shape.key_dim) {
        narrow_in_place(query);
    }
    if T::HAS_SCALES {
        let (low, high) = chunk.seen(0..chunk.n_flat());
        gather_scales(chunk, low / LANES * LANES..high, scales);
    }
}

/// Turns the scores of these flat rows for `columns` into pairs of weights, in the first half of
/// `columns` of their lines, and sets their maxima and sums.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi")]
fn turn_into_weights<T: Interleave>(
    chunk: &Chunk<'_, T>,
    (flats, columns): (Range<usize>, &Range<usize>),
    [of_keys, of_values]: &Scales,
    lines: &mut [f32],
    out: &mut State<'_>,
) {
    // SAFETY: this function has the features.
    let s = unsafe { Avx512::assume() };
    if T::HAS_SCALES {
        scale(of_keys, columns.clone(), lines);
    }
    weights(s, chunk, flats.clone(), lines, out);
    if T::HAS_SCALES {
        scale_weights(chunk, flats.clone(), of_values, lines);
    }
    clear_unseen(chunk, flats, columns.clone(), lines);
    for line in lines.chunks_exact_mut(SCORE_LINE) {
        narrow_in_place(&mut line[LANES..][columns.clone()]);
    }
}

/// Scores of these flat rows for `vectors` of `columns`, of sixteen each.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi")]
fn score<T: Interleave>(
    chunk: &Chunk<'_, T>,
    flats: Range<usize>,
    (columns, vectors): (&Range<usize>, Range<usize>),
    (queries, keys): (&[f32], &mut Blocks<'_>),
    lines: &mut [f32],
) {
    let n_before = vectors.start * LANES * chunk.shape.key_dim / 2;
    let part = Part { flats, first: columns.start + vectors.start * LANES };
    let keys = (keys, n_before);
    match vectors.len() {
        4 => score_part::<T, 4>(chunk, part, queries, keys, lines),
        2 => score_part::<T, 2>(chunk, part, queries, keys, lines),
        _ => score_part::<T, 1>(chunk, part, queries, keys, lines),
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

/// Adds the weighted values of block `idx` of `columns` to `acc` `[flats, padded]`; weights are pairs
/// in the first half of `columns` of their lines.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi")]
fn weigh<T: Interleave>(
    chunk: &Chunk<'_, T>,
    flats: Range<usize>,
    (columns, idx): (&Range<usize>, usize),
    (lines, values): (&[f32], &mut Blocks<'_>),
    acc: &mut [f32],
) {
    // SAFETY: this function has the features.
    let s = unsafe { Avx512::assume() };
    let padded = chunk.shape.padded_dim();
    let (low, high) = chunk.seen(flats);
    let of = columns.start / BLOCK + idx;
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
        let values = (&of_block, &mut *values, (idx * padded + first) * PAIRS);
        match vectors.len() {
            4 => weigh_part::<T, 4>(values, first, padded, weights, acc),
            2 => weigh_part::<T, 2>(values, first, padded, weights, acc),
            _ => weigh_part::<T, 1>(values, first, padded, weights, acc),
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
