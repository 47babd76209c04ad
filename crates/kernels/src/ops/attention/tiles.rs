//! Chunks of bf16 keys and values on tile registers (Intel AMX).
//!
//! ```text
//! scores     for each two key groups: put their keys in order        2 x key_dim / 32 tiles
//!                C[2][2] = 0;  C[i][j] += A[i] B[j]                  A: queries of 16 flat rows
//!            to the lines of scores
//! weights    as everywhere else                                                      (chunk.rs)
//! values     for each 32 elements, for each block of 32 columns: put their values in order
//!                C[i][j] += A[i] B[j]                                A: weights of 16 flat rows
//!            to the sums
//!
//! row j of B     .0 of column or element n: term j ^ 1, .1: term 16 + (j ^ 1)      of its 32 terms
//! ```
//!
//! A product adds up its even terms and its odd ones apart, then their sum to the result
//! ([`crate::simd::tiles`]). With the terms in these places, that is the canonical order, and the
//! bits are those of the other kernels.
//!
//! Columns that a row does not see have the weight 0, and their values are multiplied with it. That
//! leaves the bits as they are: sums begin at +0, and no product is so small that it rounds to -0,
//! because bf16 factors are 0 or at least 2⁻⁵⁰. An infinite or NaN value of a column that
//! some row does not see would reach it; a chunk with such a value is computed without tiles.
//!
//! Per 32 flat rows, 32 columns and 64 elements: 8 + 8 products of 16 cycles, and 64 exponentials
//! of sixteen lanes. Per 32 columns, 128 rows of B for all flat rows of the item, with two loads, a
//! shuffle and a store each.
//!
//! One thread of a Granite Rapids takes about 9 cycles for each row of B, because the keys and
//! values of a long sequence come from the third-level cache; hence the 256 flat rows of an item.
//! Tiles beat vectors from 6 flat rows on: 7 heads of 64 elements behind 4,096 tokens take 0.10 ms
//! instead of 0.126, six rows of them 0.23 instead of 0.59, and 4 heads 0.43 instead of 0.28.
//!
//! Tried: groups multiplied as soon as they are in order (10 % slower: tiles wait for rows that
//! were just written); scaled scores instead of scaled queries (a pass over all of them, 4 %).

use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;

use half::bf16;

use super::chunk::{Chunk, SCORE_LINE, bf16_shells, weights};
use super::merge::State;
use super::score::KeyGroup;
use super::{BLOCK, CHUNK, HALF};
use crate::simd::tiles::{Form, ROW_BYTES, ROWS, Stored, Tiles};
use crate::simd::{Avx512, LANES};

/// Most flat rows of an item.
pub(super) const FLAT_ROWS: usize = 256;
/// Flat rows that are multiplied together.
const PAIR: usize = 2 * ROWS;
/// Fewest flat rows for which tiles are faster than vectors.
const FEWEST_ROWS: usize = 6;

/// Memory of a thread: operands in the order that tiles read.
struct Scratch {
    /// Of each 32 flat rows: queries `[key_dim / 32][2]`, then weights `[blocks][2]`.
    rows: Vec<[Stored; 2]>,
    /// Two times the keys `[key_dim / 32][2 groups]`; or two times sixteen elements of the values
    /// `[blocks][2]`.
    columns: Vec<[Stored; 2]>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> =
        const { RefCell::new(Scratch { rows: Vec::new(), columns: Vec::new() }) };
}

/// Sixteen zeros, for values that do not exist.
static ZEROS: [bf16; LANES] = [bf16::ZERO; LANES];

/// Whether tiles compute this chunk.
fn fits(chunk: &Chunk<'_, bf16>, high: usize) -> bool {
    let shape = chunk.shape;
    chunk.n_flat() >= FEWEST_ROWS
        && shape.key_dim.is_multiple_of(BLOCK)
        && shape.block_size.is_multiple_of(LANES)
        && !shape.values_in_keys
        && high <= chunk.dense()
}

/// Computes the chunk into `out`; `scratch` as for the vector kernels.
///
/// # Safety
///
/// This CPU has the features below, and tiles are supported.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) unsafe fn chunk(chunk: &Chunk<'_, bf16>, scratch: &mut [f32], out: &mut State<'_>) {
    let (low, high) = chunk.seen();
    if low >= high || !fits(chunk, high) {
        // SAFETY: this function has the features of the shell.
        return unsafe { bf16_shells::avx512(chunk, scratch, out) };
    }
    let n_flat = chunk.n_flat();
    let scores = &mut scratch[..n_flat * SCORE_LINE];
    let is_done = SCRATCH.with_borrow_mut(|memory| {
        // SAFETY: the caller vouches for tiles; none are alive in this thread.
        let mut tiles = unsafe { Tiles::of(form(n_flat)) };
        // SAFETY: this function has the features that these need.
        unsafe {
            score(&mut tiles, chunk, memory, scores, low / LANES * LANES..high);
            weights(Avx512::assume(), chunk, scores, out);
            weigh(&mut tiles, chunk, memory, scores, out.acc, low..high)
        }
    });
    if !is_done {
        // SAFETY: as above.
        unsafe { bf16_shells::avx512(chunk, scratch, out) }
    }
}

/// First rows of the 32 flat rows that are multiplied together. The last 32 may have some of those
/// before them, which are then computed twice; so tiles keep their form.
fn pairs(n_flat: usize) -> impl Iterator<Item = usize> {
    (0..n_flat).step_by(PAIR).map(move |first| first.min(n_flat.saturating_sub(PAIR)))
}

/// Tiles 0 to 7: sums of the first 16 flat rows, sums of the others, rows of both, columns.
fn form(n_flat: usize) -> Form {
    let n_flat = n_flat.min(PAIR);
    let (first, others) = (n_flat.min(ROWS), n_flat.saturating_sub(ROWS));
    let rows = [first, first, others, others, first, others, ROWS, ROWS];
    Form::new(rows.map(|n_rows| (n_rows, ROW_BYTES)))
}

/// `C[i][j] += A[i] B[j]`, where `BOTH` says whether there are rows of the second half.
///
/// # Safety
///
/// The tiles have the form of as many rows.
#[inline(always)]
unsafe fn multiply<const BOTH: bool>(tiles: &mut Tiles, a: &[Stored; 2], b: &[Stored; 2]) {
    // SAFETY: operands are whole tiles.
    unsafe {
        tiles.load::<4>(a[0].0.as_ptr(), ROW_BYTES);
        tiles.load::<6>(b[0].0.as_ptr(), ROW_BYTES);
        tiles.dot_bf16::<0, 4, 6>();
        tiles.load::<7>(b[1].0.as_ptr(), ROW_BYTES);
        tiles.dot_bf16::<1, 4, 7>();
        if BOTH {
            tiles.load::<5>(a[1].0.as_ptr(), ROW_BYTES);
            tiles.dot_bf16::<2, 5, 6>();
            tiles.dot_bf16::<3, 5, 7>();
        }
    }
}

/// Sets the sums to zero.
#[inline(always)]
fn clear<const BOTH: bool>(tiles: &mut Tiles) {
    tiles.zero::<0>();
    tiles.zero::<1>();
    if BOTH {
        tiles.zero::<2>();
        tiles.zero::<3>();
    }
}

/// Writes the sums: of the first columns to `to`, of the others sixteen floats after them, where
/// there are any; flat rows lie `stride` floats apart.
///
/// # Safety
///
/// This memory can be written.
#[inline(always)]
unsafe fn store<const BOTH: bool>(tiles: &Tiles, to: *mut f32, stride: usize, has_second: bool) {
    // SAFETY: the caller vouches for the memory.
    unsafe {
        tiles.store::<0>(to.cast(), stride * 4);
        if has_second {
            tiles.store::<1>(to.add(LANES).cast(), stride * 4);
        }
        if BOTH {
            let to = to.add(ROWS * stride);
            tiles.store::<2>(to.cast(), stride * 4);
            if has_second {
                tiles.store::<3>(to.add(LANES).cast(), stride * 4);
            }
        }
    }
}

/// Scores of all flat rows for the groups of these columns, the first of which begins one.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn score(
    tiles: &mut Tiles,
    chunk: &Chunk<'_, bf16>,
    memory: &mut Scratch,
    scores: &mut [f32],
    columns: Range<usize>,
) {
    let n_blocks = chunk.shape.key_dim / BLOCK;
    arrange_rows(chunk.q, chunk.shape.key_dim, 0, n_blocks, &mut memory.rows);
    grow(&mut memory.columns, 2 * n_blocks);
    if chunk.n_flat() > ROWS {
        score_groups::<true>(tiles, chunk, memory, scores, columns);
    } else {
        score_groups::<false>(tiles, chunk, memory, scores, columns);
    }
}

/// The products of [`score`]; while two groups are multiplied, the next two are put in order.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn score_groups<const BOTH: bool>(
    tiles: &mut Tiles,
    chunk: &Chunk<'_, bf16>,
    memory: &mut Scratch,
    scores: &mut [f32],
    columns: Range<usize>,
) {
    let n_blocks = chunk.shape.key_dim / BLOCK;
    let Scratch { rows, columns: keys } = memory;
    let (mut now, mut coming) = keys[..2 * n_blocks].split_at_mut(n_blocks);
    let mut before = None;
    for column in columns.clone().step_by(2 * LANES).map(Some).chain([None]) {
        if let Some(column) = column {
            for (at, column) in (column..columns.end).step_by(LANES).take(2).enumerate() {
                let group = chunk.key_group(chunk.start + column);
                arrange_keys(&group, chunk.after_keys(&group), at, coming);
            }
        }
        if let Some(column) = before {
            for (first, rows) in pairs(chunk.n_flat()).zip(rows.chunks_exact(n_blocks)) {
                clear::<BOTH>(tiles);
                // SAFETY: the tiles have the form of the rows; lines have every column.
                unsafe {
                    for (rows, keys) in rows.iter().zip(&*now) {
                        multiply::<BOTH>(tiles, rows, keys);
                    }
                    let to = scores[first * SCORE_LINE + LANES + column..].as_mut_ptr();
                    store::<BOTH>(tiles, to, SCORE_LINE, column + LANES < columns.end);
                }
            }
        }
        before = column;
        std::mem::swap(&mut now, &mut coming);
    }
}

/// Sets `acc` to the weighted values of all flat rows, summed; `false`, and `acc` as it was, where a
/// value that some row does not see is not finite.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn weigh(
    tiles: &mut Tiles,
    chunk: &Chunk<'_, bf16>,
    memory: &mut Scratch,
    scores: &mut [f32],
    acc: &mut [f32],
    columns: Range<usize>,
) -> bool {
    let blocks = columns.start / BLOCK..columns.end.div_ceil(BLOCK);
    let (mut start, mut end) = (0, usize::MAX);
    for (flat, line) in scores.chunks_exact_mut(SCORE_LINE).enumerate() {
        // Softmax has zeros in the rest of a sixteen that is partly seen.
        let (low, high) = chunk.visible(flat);
        (start, end) = (start.max(low), end.min(high));
        let line = &mut line[LANES..];
        let low = if low < high { low / LANES * LANES } else { blocks.end * BLOCK };
        line[blocks.start * BLOCK..low].fill(0.0);
        line[high.next_multiple_of(LANES).max(low)..blocks.end * BLOCK].fill(0.0);
    }
    let is_seen_by_all = |block: usize| start <= block * BLOCK && (block + 1) * BLOCK <= end;
    for block in blocks.clone().filter(|&block| !is_seen_by_all(block)) {
        if !Values::of(chunk, block).are_finite() {
            return false;
        }
    }
    arrange_rows(&scores[LANES..], SCORE_LINE, blocks.start, blocks.len(), &mut memory.rows);
    if chunk.n_flat() > ROWS {
        weigh_blocks::<true>(tiles, chunk, memory, acc, blocks);
    } else {
        weigh_blocks::<false>(tiles, chunk, memory, acc, blocks);
    }
    true
}

/// The products of [`weigh`]; each value is put in order once for all rows.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn weigh_blocks<const BOTH: bool>(
    tiles: &mut Tiles,
    chunk: &Chunk<'_, bf16>,
    memory: &mut Scratch,
    acc: &mut [f32],
    blocks: Range<usize>,
) {
    let padded = chunk.shape.padded_dim();
    let Scratch { rows, columns } = memory;
    let n_blocks = blocks.len();
    let mut values = [Values::default(); CHUNK / BLOCK];
    for (values, block) in values.iter_mut().zip(blocks) {
        *values = Values::of(chunk, block);
    }
    grow(columns, n_blocks);
    for first in (0..padded).step_by(2 * LANES) {
        for (values, arranged) in values.iter().zip(&mut columns[..n_blocks]) {
            for (first, arranged) in (first..padded).step_by(LANES).zip(arranged) {
                values.arrange(first, arranged);
            }
        }
        for (flat, rows) in pairs(chunk.n_flat()).zip(rows.chunks_exact(n_blocks)) {
            clear::<BOTH>(tiles);
            // SAFETY: the tiles have the form of the rows; a sum has `padded` elements.
            unsafe {
                for (rows, values) in rows.iter().zip(&columns[..n_blocks]) {
                    multiply::<BOTH>(tiles, rows, values);
                }
                let to = acc[flat * padded + first..].as_mut_ptr();
                store::<BOTH>(tiles, to, padded, first + LANES < padded);
            }
        }
    }
}

/// Makes room for `n` pairs of tiles.
fn grow(memory: &mut Vec<[Stored; 2]>, n: usize) {
    if memory.len() < n {
        memory.resize(n, [Stored::ZERO; 2]);
    }
}

/// The values of the columns of one block, as far as they exist.
#[derive(Clone, Copy, Default)]
struct Values<'a> {
    /// Each `[16 columns][padded]`; empty where the sequence has ended.
    halves: [&'a [bf16]; 2],
    padded: usize,
    /// Bytes from the values of each half to what is read for their columns next.
    to_coming: [usize; 2],
}

impl<'a> Values<'a> {
    fn of(chunk: &Chunk<'a, bf16>, block: usize) -> Self {
        let position = chunk.start + block * BLOCK;
        let half = |position: usize| -> &'a [bf16] {
            if position < chunk.seq_end {
                chunk.values(position, position + HALF).0.as_flattened()
            } else {
                &[]
            }
        };
        let halves = [half(position), half(position + HALF)];
        let to_coming = |half: usize| match halves[half] {
            [] => 0,
            values => chunk.to_coming(values.as_ptr().cast(), position + half * HALF),
        };
        let to_coming = [to_coming(0), to_coming(1)];
        Self { halves, padded: chunk.shape.padded_dim(), to_coming }
    }

    #[target_feature(enable = "avx512f,avx512bw")]
    fn are_finite(&self) -> bool {
        let exponent = _mm512_set1_epi16(0x7f80);
        self.halves.iter().all(|half| {
            half.as_chunks::<{ 2 * LANES }>().0.iter().all(|values| {
                // SAFETY: these are 64 bytes.
                let values = unsafe { _mm512_loadu_si512(values.as_ptr().cast()) };
                _mm512_cmpeq_epi16_mask(_mm512_and_si512(values, exponent), exponent) == 0
            })
        })
    }

    /// Puts sixteen elements from `first` on in the order of tiles.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn arrange(&self, first: usize, out: &mut Stored) {
        let line = |half: usize, t: usize| -> &[bf16; LANES] {
            match self.halves[half] {
                [] => &ZEROS,
                values => {
                    let line = values[t * self.padded + first..].first_chunk();
                    line.expect("invariant: values are padded")
                }
            }
        };
        for (j, row) in out.rows_mut().iter_mut().enumerate() {
            let (low, high) = (line(0, j ^ 1), line(1, j ^ 1));
            interleave(low, high, row);
            if first.is_multiple_of(2 * LANES) {
                prefetch(low.as_ptr().wrapping_byte_add(self.to_coming[0]));
                prefetch(high.as_ptr().wrapping_byte_add(self.to_coming[1]));
            }
        }
    }
}

/// Puts the keys of a group in the order of tiles, as group `at` of each block; `next` bytes after
/// each line is what is read next.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn arrange_keys(group: &KeyGroup<'_, bf16>, next: usize, at: usize, out: &mut [[Stored; 2]]) {
    for (keys, out) in group.keys.as_chunks::<BLOCK>().0.iter().zip(out) {
        for (j, row) in out[at].rows_mut().iter_mut().enumerate() {
            let (low, high) = (&keys[j ^ 1], &keys[HALF + (j ^ 1)]);
            interleave(low, high, row);
            if j % 2 == 0 {
                prefetch(low.as_ptr().wrapping_byte_add(next));
                prefetch(high.as_ptr().wrapping_byte_add(next));
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn prefetch(address: *const bf16) {
    _mm_prefetch::<_MM_HINT_T1>(address.cast())
}

/// Element `n` of `low` and of `high` to places `2 n` and `2 n + 1`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn interleave(low: &[bf16; LANES], high: &[bf16; LANES], row: &mut [u8; ROW_BYTES]) {
    const FROM: [u16; 2 * LANES] = {
        let mut from = [0; 2 * LANES];
        let mut place = 0;
        while place < from.len() {
            from[place] = (place / 2 + place % 2 * LANES) as u16;
            place += 1;
        }
        from
    };
    // SAFETY: both are 32 bytes, the row and the places are 64.
    unsafe {
        let low = _mm512_castsi256_si512(_mm256_loadu_si256(low.as_ptr().cast()));
        let both = _mm512_inserti64x4::<1>(low, _mm256_loadu_si256(high.as_ptr().cast()));
        let from = _mm512_loadu_si512(FROM.as_ptr().cast());
        _mm512_storeu_si512(row.as_mut_ptr().cast(), _mm512_permutexvar_epi16(from, both));
    }
}

/// Puts floats that are bf16 in the order that tiles read: `n_blocks` blocks of 32 from block
/// `first` on of each row, which lie `stride` floats apart; the last may have no more than it
/// needs.
#[target_feature(enable = "avx512f")]
fn arrange_rows(
    floats: &[f32],
    stride: usize,
    first: usize,
    n_blocks: usize,
    out: &mut Vec<[Stored; 2]>,
) {
    let n_flat = floats.len().div_ceil(stride);
    grow(out, n_flat.div_ceil(PAIR) * n_blocks);
    for (start, out) in pairs(n_flat).zip(out.chunks_exact_mut(n_blocks)) {
        for (at, row) in floats[start * stride..].chunks(stride).take(PAIR).enumerate() {
            let blocks = row[first * BLOCK..].as_chunks::<BLOCK>().0.iter();
            for (block, out) in blocks.take(n_blocks).zip(&mut *out) {
                arrange_row(block, &mut out[at / ROWS].rows_mut()[at % ROWS]);
            }
        }
    }
}

/// Puts 32 terms of a row in order: the upper halves of floats.
#[inline]
#[target_feature(enable = "avx512f")]
fn arrange_row(block: &[f32; BLOCK], row: &mut [u8; ROW_BYTES]) {
    let (low, high) = block.split_at(HALF);
    // SAFETY: each is sixteen floats, a row of a tile 64 bytes.
    unsafe {
        let (low, high) = (low.as_ptr().cast(), high.as_ptr().cast());
        let low = _mm512_shuffle_epi32::<0b10_11_00_01>(_mm512_loadu_si512(low));
        let high = _mm512_shuffle_epi32::<0b10_11_00_01>(_mm512_loadu_si512(high));
        let high = _mm512_and_si512(high, _mm512_set1_epi32(-0x1_0000));
        let both = _mm512_or_si512(_mm512_srli_epi32::<16>(low), high);
        _mm512_storeu_si512(row.as_mut_ptr().cast(), both);
    }
}
