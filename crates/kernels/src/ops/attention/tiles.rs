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

use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;

use half::bf16;

use super::chunk::{Chunk, LINES, SCORE_LINE, bf16_shells, fp8_shells, int8_shells, largest};
use super::merge::State;
use super::score::KeyGroup;
use super::softmax::{BeforeScales, Rounded, Weights};
use super::weigh::{HALF_BF16, scaled};
use super::{BLOCK, CHUNK, HALF};
use crate::ops::kv::KvElement;
use crate::simd::math::{exp_bf16, exp_near_bf16};
use crate::simd::tiles::{Form, ROW_BYTES, ROWS, Stored, TILE_BYTES, Tiles};
use crate::simd::{Avx512, LANES, Simd};

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
    scales: [[f32; CHUNK]; 2],
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

/// An element type that tiles multiply: each of its numbers is one of bf16.
pub(super) trait Tiled: KvElement {
    /// Sixteen zeros, for values that do not exist.
    const ZEROS: &'static [Self; LANES];

    /// The vector kernel, for chunks that tiles do not compute.
    const VECTORS: unsafe fn(&Chunk<'_, Self>, &mut [f32], &mut State<'_>);

    /// Element `n` of `low` and of `high` to places `2 n` and `2 n + 1`, as bf16; by way of floats,
    /// whose lower halves are zero.
    ///
    /// # Safety
    ///
    /// This CPU has the features of [`chunk`].
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn interleave(low: &[Self; LANES], high: &[Self; LANES], row: &mut [u8; ROW_BYTES]) {
        // SAFETY: this function has the features.
        let s = unsafe { Avx512::assume() };
        let low = _mm512_srli_epi32::<16>(_mm512_castps_si512(Self::load(s, low)));
        let both = _mm512_or_si512(low, _mm512_castps_si512(Self::load(s, high)));
        // SAFETY: a row is 64 bytes.
        unsafe { _mm512_storeu_si512(row.as_mut_ptr().cast(), both) };
    }

    /// Whether all of them are finite.
    fn are_finite(values: &[Self]) -> bool;
}

impl Tiled for bf16 {
    const ZEROS: &'static [Self; LANES] = &[Self::ZERO; LANES];
    const VECTORS: unsafe fn(&Chunk<'_, Self>, &mut [f32], &mut State<'_>) = bf16_shells::avx512;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn interleave(low: &[Self; LANES], high: &[Self; LANES], row: &mut [u8; ROW_BYTES]) {
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

    #[inline(always)]
    fn are_finite(values: &[Self]) -> bool {
        // The compiler widens these loops: no early return within a block.
        let is_finite = |x: &Self| x.to_bits() & 0x7f80 != 0x7f80;
        values.chunks(CHUNK).all(|values| values.iter().fold(true, |all, x| all & is_finite(x)))
    }
}

/// fp8, by its bits.
impl Tiled for u8 {
    const ZEROS: &'static [Self; LANES] = &[0; LANES];
    const VECTORS: unsafe fn(&Chunk<'_, Self>, &mut [f32], &mut State<'_>) = fp8_shells::avx512;

    #[inline(always)]
    fn are_finite(values: &[Self]) -> bool {
        // There is no infinity.
        values
            .chunks(CHUNK)
            .all(|values| values.iter().fold(true, |all, x| all & (x & 0x7f != 0x7f)))
    }
}

impl Tiled for i8 {
    const ZEROS: &'static [Self; LANES] = &[0; LANES];
    const VECTORS: unsafe fn(&Chunk<'_, Self>, &mut [f32], &mut State<'_>) = int8_shells::avx512;

    /// The scale of a value may be infinite or NaN; it multiplies the weights of rows that see it.
    #[inline(always)]
    fn are_finite(_: &[Self]) -> bool {
        true
    }
}

/// Whether tiles compute this chunk.
fn fits<T: Tiled>(chunk: &Chunk<'_, T>, high: usize) -> bool {
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
pub(super) unsafe fn chunk<T: Tiled>(
    chunk: &Chunk<'_, T>,
    scratch: &mut [f32],
    out: &mut State<'_>,
) {
    let n_flat = chunk.n_flat();
    let (low, high) = chunk.seen(0..n_flat);
    if low >= high || !fits(chunk, high) || !unseen_are_finite(chunk, low..high) {
        // SAFETY: this function has the features of the shell.
        return unsafe { T::VECTORS(chunk, scratch, out) };
    }
    SCRATCH.with_borrow_mut(|memory| {
        let n_flat = n_flat.min(PAIR);
        // SAFETY: the caller vouches for tiles; none are alive in this thread.
        let tiles = Forms { tiles: unsafe { Tiles::of(form(n_flat)) }, n_flat };
        Products::new(chunk, low..high, tiles, memory).all(scratch, out);
    });
}

/// Whether all values are finite that lie in blocks which some row does not see whole.
#[target_feature(enable = "avx512f,avx512bw")]
fn unseen_are_finite<T: Tiled>(chunk: &Chunk<'_, T>, columns: Range<usize>) -> bool {
    let (mut start, mut end) = (0, usize::MAX);
    for flat in (0..chunk.n_flat()).step_by(chunk.group) {
        let (low, high) = chunk.visible(flat);
        (start, end) = (start.max(low), end.min(high));
    }
    let is_seen_by_all = |block: usize| start <= block * BLOCK && (block + 1) * BLOCK <= end;
    for block in blocks(&columns) {
        if !is_seen_by_all(block) && !Values::of(chunk, block).are_finite() {
            return false;
        }
    }
    true
}

/// Blocks that hold these columns.
fn blocks(columns: &Range<usize>) -> Range<usize> {
    columns.start / BLOCK..columns.end.div_ceil(BLOCK)
}

/// Tiles 0 to 7: sums of the first 16 of these flat rows, sums of the others, rows of both,
/// columns.
fn form(n_flat: usize) -> Form {
    let (first, others) = (n_flat.min(ROWS), n_flat.saturating_sub(ROWS));
    let rows = [first, first, others, others, first, others, ROWS, ROWS];
    Form::new(rows.map(|n_rows| (n_rows, ROW_BYTES)))
}

/// The forms of tiles for a number of flat rows, 32 at a time.
struct Forms {
    tiles: Tiles,
    /// Flat rows of the present form.
    n_flat: usize,
}

impl Forms {
    /// Sets as many lines as there are rows, which lie `stride` floats apart from `to` on, to the
    /// products of the rows and of 16 columns, or of 32 if `has_second`.
    ///
    /// # Safety
    ///
    /// The rows have a block for each of the columns, and the lines can be written.
    #[target_feature(enable = "avx512f")]
    unsafe fn multiply(
        &mut self,
        rows: Rows,
        columns: &[[Stored; 2]],
        to: *mut f32,
        stride: usize,
        has_second: bool,
    ) {
        if rows.n != self.n_flat {
            self.tiles.set(form(rows.n));
            self.n_flat = rows.n;
        }
        // SAFETY: the tiles have the form; the caller vouches for the rows and the lines.
        unsafe {
            if rows.n > ROWS {
                product::<true>(&mut self.tiles, rows, columns, to, stride, has_second);
            } else {
                product::<false>(&mut self.tiles, rows, columns, to, stride, has_second);
            }
        }
    }
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

impl<'a, T: Tiled> Products<'a, T> {
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
                        self.blocks[block].arrange(first, values);
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

/// Up to 32 rows in the order of tiles.
#[derive(Clone, Copy)]
struct Rows {
    /// Number of rows.
    n: usize,
    /// Block 0 of row 0.
    first: *const u8,
    /// Bytes from a row to the next.
    stride: usize,
    /// Bytes from a block to the next.
    to_block: usize,
    /// Bytes from row 0 to row 16.
    to_second: usize,
}

impl Rows {
    /// `n` rows in tiles of their own.
    fn in_tiles(n: usize, tiles: &[[Stored; 2]]) -> Self {
        let (first, to_block) = (tiles.as_ptr().cast(), 2 * TILE_BYTES);
        Self { n, first, stride: ROW_BYTES, to_block, to_second: TILE_BYTES }
    }

    /// `n` rows in lines of scores.
    fn in_lines(n: usize, lines: &[f32]) -> Self {
        let (first, stride) = (lines.as_ptr().cast(), SCORE_LINE * size_of::<f32>());
        Self { n, first, stride, to_block: ROW_BYTES, to_second: ROWS * stride }
    }
}

/// `C[i][j] += A[i] B[j]`, where `BOTH` says whether there are rows of the second half.
///
/// # Safety
///
/// The tiles have the form of as many rows, and the block at `a.first` can be read.
#[inline(always)]
unsafe fn add<const BOTH: bool>(tiles: &mut Tiles, a: Rows, b: &[Stored; 2]) {
    // SAFETY: operands are whole tiles.
    unsafe {
        tiles.load::<4>(a.first, a.stride);
        tiles.load_once::<6>(b[0].0.as_ptr(), ROW_BYTES);
        tiles.dot_bf16::<0, 4, 6>();
        tiles.load_once::<7>(b[1].0.as_ptr(), ROW_BYTES);
        tiles.dot_bf16::<1, 4, 7>();
        if BOTH {
            tiles.load::<5>(a.first.wrapping_add(a.to_second), a.stride);
            tiles.dot_bf16::<2, 5, 6>();
            tiles.dot_bf16::<3, 5, 7>();
        }
    }
}

/// [`Forms::multiply`] for a form that is set.
///
/// # Safety
///
/// As there, and the tiles have the form of as many rows.
#[inline(always)]
unsafe fn product<const BOTH: bool>(
    tiles: &mut Tiles,
    mut rows: Rows,
    columns: &[[Stored; 2]],
    to: *mut f32,
    stride: usize,
    has_second: bool,
) {
    clear::<BOTH>(tiles);
    // SAFETY: the caller vouches for the rows and the lines.
    unsafe {
        for columns in columns {
            add::<BOTH>(tiles, rows, columns);
            rows.first = rows.first.wrapping_add(rows.to_block);
        }
        store::<BOTH>(tiles, to, stride, has_second);
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

/// Makes room for `n` pairs of tiles.
fn grow(memory: &mut Vec<[Stored; 2]>, n: usize) {
    if memory.len() < n {
        memory.resize(n, [Stored::ZERO; 2]);
    }
}

/// Puts the scales of the keys and of the values of these columns side by side, as far as they exist.
fn gather_scales<T: Tiled>(
    chunk: &Chunk<'_, T>,
    columns: Range<usize>,
    [of_keys, of_values]: &mut [[f32; CHUNK]; 2],
) {
    for column in columns.step_by(LANES) {
        let position = chunk.start + column;
        if let Some(scales) = chunk.key_group(position).scales {
            of_keys[column..column + LANES].copy_from_slice(scales);
        }
        let (scales, _) = chunk.value_scales(position, position + LANES);
        of_values[column..column + LANES].copy_from_slice(scales);
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

/// The values of the columns of one block, as far as they exist.
#[derive(Clone, Copy)]
struct Values<'a, T> {
    /// Each `[16 columns][padded]`; empty where the sequence has ended.
    halves: [&'a [T]; 2],
    padded: usize,
    /// Bytes from the values of each half to what is read for their columns next.
    to_coming: [usize; 2],
}

impl<'a, T: Tiled> Values<'a, T> {
    const NONE: Self = Self { halves: [&[]; 2], padded: 0, to_coming: [0; 2] };

    fn of(chunk: &Chunk<'a, T>, block: usize) -> Self {
        let position = chunk.start + block * BLOCK;
        let half = |position: usize| -> &'a [T] {
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

    #[inline(always)]
    fn are_finite(&self) -> bool {
        self.halves.iter().all(|half| T::are_finite(half))
    }

    /// Puts sixteen elements from `first` on in the order of tiles.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
    fn arrange(&self, first: usize, out: &mut Stored) {
        let line = |half: usize, t: usize| -> &[T; LANES] {
            match self.halves[half] {
                [] => T::ZEROS,
                values => {
                    let line = values[t * self.padded + first..].first_chunk();
                    line.expect("invariant: values are padded")
                }
            }
        };
        for (j, row) in out.rows_mut().iter_mut().enumerate() {
            let (low, high) = (line(0, j ^ 1), line(1, j ^ 1));
            // SAFETY: this function has the features.
            unsafe { T::interleave(low, high, row) };
            if (first * size_of::<T>()).is_multiple_of(ROW_BYTES) {
                prefetch(low.as_ptr().wrapping_byte_add(self.to_coming[0]));
                prefetch(high.as_ptr().wrapping_byte_add(self.to_coming[1]));
            }
        }
    }
}

/// Puts the keys of a group in the order of tiles, as group `at` of each block; `next` bytes after
/// each line is what is read next.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
fn arrange_keys<T: Tiled>(
    group: &KeyGroup<'_, T>,
    next: usize,
    at: usize,
    out: &mut [[Stored; 2]],
) {
    let rows_of_a_line = ROW_BYTES / size_of::<[T; LANES]>();
    for (keys, out) in group.keys.as_chunks::<BLOCK>().0.iter().zip(out) {
        for (j, row) in out[at].rows_mut().iter_mut().enumerate() {
            let (low, high) = (&keys[j ^ 1], &keys[HALF + (j ^ 1)]);
            // SAFETY: this function has the features.
            unsafe { T::interleave(low, high, row) };
            if j % rows_of_a_line == 0 {
                prefetch(low.as_ptr().wrapping_byte_add(next));
                prefetch(high.as_ptr().wrapping_byte_add(next));
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn prefetch<T>(address: *const T) {
    _mm_prefetch::<_MM_HINT_T1>(address.cast())
}

/// Puts a row of floats that are bf16 in the order that tiles read, as row `at` of 32; `out` has at
/// least as many blocks as the row.
#[inline]
#[target_feature(enable = "avx512f")]
fn arrange_row(row: &[f32], at: usize, out: &mut [[Stored; 2]]) {
    for (block, out) in row.as_chunks::<BLOCK>().0.iter().zip(out) {
        arrange_halves(halves(block), &mut out[at / ROWS].rows_mut()[at % ROWS]);
    }
}

/// Puts floats that are bf16 in the order of tiles, in the first half of their place.
#[target_feature(enable = "avx512f")]
fn arrange_in_place(line: &mut [f32]) {
    for block in 0..line.len() / BLOCK {
        let floats = line[block * BLOCK..].first_chunk().expect("invariant: whole blocks");
        let halves = halves(floats);
        let row: &mut [u8] = bytemuck::cast_slice_mut(&mut line[block * LANES..]);
        arrange_halves(halves, row.first_chunk_mut().expect("invariant: whole blocks"));
    }
}

/// Both halves of a block.
#[inline]
#[target_feature(enable = "avx512f")]
fn halves(block: &[f32; BLOCK]) -> [__m512; 2] {
    let first = block.as_ptr();
    // SAFETY: these are 32 floats.
    unsafe { [_mm512_loadu_ps(first), _mm512_loadu_ps(first.add(HALF))] }
}

/// Puts 32 terms of a row in order: the upper halves of floats.
#[inline]
#[target_feature(enable = "avx512f")]
fn arrange_halves(halves: [__m512; 2], row: &mut [u8; ROW_BYTES]) {
    let [low, high] =
        halves.map(|half| _mm512_shuffle_epi32::<0b10_11_00_01>(_mm512_castps_si512(half)));
    let high = _mm512_and_si512(high, _mm512_set1_epi32(-0x1_0000));
    let both = _mm512_or_si512(_mm512_srli_epi32::<16>(low), high);
    // SAFETY: a row of a tile is 64 bytes.
    unsafe { _mm512_storeu_si512(row.as_mut_ptr().cast(), both) };
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
