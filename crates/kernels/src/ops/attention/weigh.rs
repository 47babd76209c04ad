//! Values, weighted and summed.
//!
//! ```text
//! value        [token][value_dim]        -> 16 elements per fused multiply-add and flat row
//!
//! w[t] = e[t]                                                      f32 .. fp8
//! w[t] = bf16(e[t] · value scale[t])                                    int8
//!
//! for 4 flat rows x 64 elements at a time, over the blocks of 32 columns of the chunk:
//!     for each half of 16 columns: part = 0, then for each of its 8 pairs
//!         part[r][d] = fma(w[r][t + 1], v[t + 1][d], part[r][d]), and the same with t
//!     acc[r][d] += part of the first half + part of the last
//! ```
//!
//! Columns that a row does not see are left out of its parts: its own sum has no term for them, not
//! even a zero.
//!
//! Rows of a causal prompt end at different columns. A tile of four takes the blocks that all four
//! rows see whole together, and the blocks at the ends row by row, so that no row touches a value
//! that it may not see. Rows that see the same columns, as the heads of a decoding row do, take all
//! of them together. Where a path of a draft tree begins, the row goes alone, with the values of
//! its path one by one.
//!
//! The sums of a half stay in registers, and join those of the block and of the chunk through memory:
//! with sums of three kinds in registers, those of the half were the ones that spilled in AVX2 (9 %
//! slower). All elements of a block are computed before the next block, so its values, which came
//! from memory as its keys were read (`coming.rs`), are found once.
//!
//! Tried and dropped: sums of the chunk in registers, block after block of one strip of 64 elements
//! (places of values are then looked up once per strip: 12 % of the time in AVX2); scaling the
//! values rather than the weights (`value_dim` products per position instead of one).

use std::ops::Range;

use super::chunk::{Chunk, SCORE_LINE};
use super::tree::Path;
use super::{BLOCK, HALF};
use crate::ops::kv::KvElement;
use crate::simd::{LANES, Simd, Task};

/// Bytes of a line of memory.
const LINE: usize = 64;

/// Where the values of columns are.
pub(super) trait Values<T> {
    /// Values of the sixteen columns from `column` on, where they lie in one run.
    fn sixteen(&self, column: usize) -> Option<&[[T; LANES]]>;

    /// The value of `column`.
    fn one(&self, column: usize) -> &[[T; LANES]];

    /// Bytes from the value of `column`, at `address`, to what is read for its column next.
    fn to_coming(&self, address: *const T, column: usize) -> usize;

    /// Prefetches the scales of the keys that are read after the values from `column` on.
    #[inline(always)]
    fn prefetch_coming_scales<S: Simd>(&self, s: S, column: usize) {
        let _ = (s, column);
    }
}

/// Values in the pages of a chunk, as one of its rows sees them.
struct Pages<'a, 'c, T> {
    chunk: &'a Chunk<'c, T>,
    /// The path of the row, whose columns follow the dense ones.
    path: Option<&'a Path>,
}

impl<T: KvElement> Values<T> for Pages<'_, '_, T> {
    #[inline(always)]
    fn sixteen(&self, column: usize) -> Option<&[[T; LANES]]> {
        if self.path.is_some_and(|path| column + LANES > path.columns.start) {
            return None;
        }
        let position = self.chunk.start + column;
        let (values, next) = self.chunk.values(position, position + LANES);
        (next == position + LANES).then_some(values)
    }

    #[inline(always)]
    fn one(&self, column: usize) -> &[[T; LANES]] {
        let position = self.chunk.position_of(self.path, column);
        self.chunk.values(position, position + 1).0
    }

    #[inline(always)]
    fn to_coming(&self, address: *const T, column: usize) -> usize {
        match self.path {
            None => self.chunk.to_coming(address.cast(), self.chunk.start + column),
            Some(_) => 0,
        }
    }

    #[inline(always)]
    fn prefetch_coming_scales<S: Simd>(&self, s: S, column: usize) {
        self.chunk.prefetch_coming_scales(s, self.chunk.start + column);
    }
}

/// Adds the weighted values of all columns to `acc` `[n_flat, padded]`.
#[inline(always)]
pub(super) fn weigh<S: Simd, T: KvElement>(
    s: S,
    chunk: &Chunk<'_, T>,
    scores: &[f32],
    acc: &mut [f32],
) {
    let n_flat = chunk.n_flat();
    let padded = chunk.shape.padded_dim();
    let per_tile = super::score::rows_per_tile(n_flat);
    for flat in (0..n_flat).step_by(per_tile) {
        let n_rows = per_tile.min(n_flat - flat);
        let acc = &mut acc[flat * padded..(flat + n_rows) * padded];
        let scores = &scores[flat * SCORE_LINE..];
        match n_rows {
            1 => weigh_tile::<S, T, 1>(s, chunk, flat, scores, acc),
            2 => weigh_tile::<S, T, 2>(s, chunk, flat, scores, acc),
            3 => weigh_tile::<S, T, 3>(s, chunk, flat, scores, acc),
            _ => weigh_tile::<S, T, 4>(s, chunk, flat, scores, acc),
        }
    }
    for row in 0..n_flat / chunk.group {
        let Some(path) = chunk.path(row) else { continue };
        for flat in row * chunk.group..(row + 1) * chunk.group {
            let columns = chunk.path_blocks(flat);
            let acc = &mut acc[flat * padded..(flat + 1) * padded];
            let scores = &scores[flat * SCORE_LINE..];
            let values = &Pages { chunk, path: Some(&path) };
            s.apart(Weigh::<_, _, 1>::new(values, scores, acc, columns));
        }
    }
}

/// Adds the weighted values of the columns of `R` flat rows but for the blocks of their paths to
/// `acc` `[R, padded]`; `scores` begins at `flat`.
#[inline(always)]
fn weigh_tile<S: Simd, T: KvElement, const R: usize>(
    s: S,
    chunk: &Chunk<'_, T>,
    flat: usize,
    scores: &[f32],
    acc: &mut [f32],
) {
    let values = &Pages { chunk, path: None };
    let ends: [Range<usize>; R] = std::array::from_fn(|r| chunk.shared_columns(flat + r));
    if ends.iter().all(|columns| *columns == ends[0]) {
        return s.apart(Weigh::<_, _, R>::new(values, scores, acc, ends[0].clone()));
    }
    let middle = whole_blocks(&ends);
    let padded = acc.len() / R;
    for is_before in [true, false] {
        for (r, columns) in ends.iter().enumerate() {
            let alone = if is_before {
                columns.start..columns.end.min(middle.start)
            } else {
                columns.start.max(middle.end)..columns.end
            };
            let scores = &scores[r * SCORE_LINE..];
            let acc = &mut acc[r * padded..(r + 1) * padded];
            s.apart(Weigh::<_, _, 1>::new(values, scores, acc, alone));
        }
        if is_before {
            s.apart(Weigh::<_, _, R>::new(values, scores, acc, middle.clone()));
        }
    }
}

/// The blocks that are whole in all of these columns; an empty range at the end of a block, where
/// there are none.
fn whole_blocks(rows: &[Range<usize>]) -> Range<usize> {
    let start = rows.iter().map(|columns| columns.start).max().unwrap_or(0);
    let end = rows.iter().map(|columns| columns.end).min().unwrap_or(0);
    let start = start.next_multiple_of(BLOCK);
    start..(end / BLOCK * BLOCK).max(start)
}

/// Adds the weighted values of `columns` to the sums of `R` rows.
pub(super) struct Weigh<'a, L, T, const R: usize> {
    values: &'a L,
    scores: &'a [f32],
    acc: &'a mut [f32],
    columns: Range<usize>,
    _type: std::marker::PhantomData<T>,
}

impl<'a, L, T, const R: usize> Weigh<'a, L, T, R> {
    /// `acc` `[R, padded]`; `scores` begins with the line of the first row.
    pub(super) fn new(
        values: &'a L,
        scores: &'a [f32],
        acc: &'a mut [f32],
        columns: Range<usize>,
    ) -> Self {
        Self { values, scores, acc, columns, _type: std::marker::PhantomData }
    }
}

impl<S: Simd, T: KvElement, L: Values<T>, const R: usize> Task<S> for Weigh<'_, L, T, R> {
    type Out = ();

    #[inline(always)]
    fn run(self, s: S) {
        let Self { values, scores, acc, columns, .. } = self;
        if columns.is_empty() {
            return;
        }
        let n_vectors = acc.len() / R / LANES;
        let mut weights: [&[f32]; R] = [&[]; R];
        for (r, weights) in weights.iter_mut().enumerate() {
            *weights = &scores[r * SCORE_LINE + LANES..(r + 1) * SCORE_LINE];
        }
        let mut block = columns.start / BLOCK * BLOCK;
        while block < columns.end {
            let middle = block + HALF;
            let halves = [
                Half::of(values, columns.start.max(block), columns.end.min(middle)),
                Half::of(values, columns.start.max(middle), columns.end.min(middle + HALF)),
            ];
            if let Some(half) = halves.iter().find(|half| half.lines.is_some()) {
                values.prefetch_coming_scales(s, half.from);
            }
            let block_of = &Block { values, weights, halves, n_vectors };
            let mut first = 0;
            if S::IS_WIDE || R == 1 {
                while first + 4 <= n_vectors {
                    weigh_strip::<S, T, L, R, 4>(s, block_of, acc, first);
                    first += 4;
                }
            }
            if S::IS_WIDE || R < 4 {
                while first + 2 <= n_vectors {
                    weigh_strip::<S, T, L, R, 2>(s, block_of, acc, first);
                    first += 2;
                }
            }
            while first < n_vectors {
                weigh_strip::<S, T, L, R, 1>(s, block_of, acc, first);
                first += 1;
            }
            block += BLOCK;
        }
    }
}

/// One block of columns.
struct Block<'a, T, L, const R: usize> {
    values: &'a L,
    /// Weights of the columns of each row.
    weights: [&'a [f32]; R],
    halves: [Half<'a, T>; 2],
    n_vectors: usize,
}

/// The columns of half a block that rows see, perhaps none.
struct Half<'a, T> {
    from: usize,
    to: usize,
    /// Values of all sixteen columns, where they lie in one run.
    lines: Option<&'a [[T; LANES]]>,
    /// Bytes from each of these values to what is read next.
    to_coming: usize,
}

impl<'a, T: KvElement> Half<'a, T> {
    #[inline(always)]
    fn of(values: &'a impl Values<T>, from: usize, to: usize) -> Self {
        let mut half = Self { from, to, lines: None, to_coming: 0 };
        if from + HALF == to
            && let Some(lines) = values.sixteen(from)
        {
            half.to_coming = values.to_coming(lines.as_flattened().as_ptr(), from);
            half.lines = Some(lines);
        }
        half
    }
}

/// Adds sixteen times `V` elements of a block from vector `first` on to the sums of `R` rows.
#[inline(always)]
fn weigh_strip<S: Simd, T: KvElement, L: Values<T>, const R: usize, const V: usize>(
    s: S,
    block: &Block<'_, T, L, R>,
    acc: &mut [f32],
    first: usize,
) {
    let acc = acc.as_chunks_mut::<LANES>().0;
    // Through memory, or these sums push those of the next half out of the registers.
    let mut low = [[[0.0; LANES]; V]; R];
    for (i, half) in block.halves.iter().enumerate() {
        let part = weigh_half::<S, T, L, R, V>(s, block, half, first);
        for r in 0..R {
            for v in 0..V {
                if i == 0 {
                    s.store(part[r][v], &mut low[r][v]);
                } else {
                    let sum = &mut acc[r * block.n_vectors + first + v];
                    s.store(s.add(s.load(sum), s.add(s.load(&low[r][v]), part[r][v])), sum);
                }
            }
        }
    }
}

/// Products of the columns of half a block.
#[inline(always)]
fn weigh_half<S: Simd, T: KvElement, L: Values<T>, const R: usize, const V: usize>(
    s: S,
    block: &Block<'_, T, L, R>,
    half: &Half<'_, T>,
    first: usize,
) -> [[S::F; V]; R] {
    let mut part = [[s.splat(0.0); V]; R];
    let Block { values, weights, n_vectors, .. } = *block;
    let (from, to) = (half.from, half.to);
    let mut ones = [0.0; R];
    if let Some(lines) = half.lines {
        // With lengths that the compiler knows, fewer bounds are checked in the loop.
        let mut seen = [&[0.0; HALF]; R];
        for r in 0..R {
            seen[r] = weights[r][from..].first_chunk().expect("invariant: half a block");
        }
        for (pair, lines) in lines.chunks_exact(2 * n_vectors).enumerate().take(HALF / 2) {
            let (even, odd) = lines.split_at(n_vectors);
            for r in 0..R {
                ones[r] = seen[r][2 * pair + 1];
            }
            add_value(s, &odd[first..first + V], &ones, half.to_coming, &mut part);
            for r in 0..R {
                ones[r] = seen[r][2 * pair];
            }
            add_value(s, &even[first..first + V], &ones, half.to_coming, &mut part);
        }
        return part;
    }
    let mut pair = from / 2 * 2;
    while pair < to {
        for column in [pair + 1, pair] {
            if from <= column && column < to {
                let line = &values.one(column)[first..first + V];
                let to_coming = values.to_coming(line.as_flattened().as_ptr(), column);
                for r in 0..R {
                    ones[r] = weights[r][column];
                }
                add_value(s, line, &ones, to_coming, &mut part);
            }
        }
        pair += 2;
    }
    part
}

/// Adds elements of one value times its weight of each row, and prefetches what comes after them.
#[inline(always)]
fn add_value<S: Simd, T: KvElement, const R: usize, const V: usize>(
    s: S,
    line: &[[T; LANES]],
    weights: &[f32; R],
    to_coming: usize,
    part: &mut [[S::F; V]; R],
) {
    let mut value = [s.splat(0.0); V];
    for v in 0..V {
        value[v] = T::load(s, &line[v]);
        if (v * size_of::<[T; LANES]>()).is_multiple_of(LINE) {
            s.prefetch(line[v].as_ptr().cast::<u8>().wrapping_add(to_coming));
        }
    }
    for r in 0..R {
        let weight = s.splat(weights[r]);
        for v in 0..V {
            part[r][v] = s.fma(weight, value[v], part[r][v]);
        }
    }
}

/// A weight times the scale of its value, rounded to bf16: half a unit of its last place is added to
/// the magnitude, and the lower bits are left out.
#[inline(always)]
pub(super) fn scaled(weight: f32, scale: f32) -> f32 {
    f32::from_bits((weight * scale).to_bits().wrapping_add(HALF_BF16) & !LOWER_HALF)
}

/// Half a unit in the last place of a bf16, added to the bits of a float.
pub(super) const HALF_BF16: u32 = 0x8000;
/// The bits of a float that a bf16 has not.
const LOWER_HALF: u32 = 0xffff;

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
                *weight = scaled(*weight, *scale);
            }
            position = next;
        }
        if let (Some(tree), Some(path)) = (&chunk.tree, chunk.path(flat / chunk.group)) {
            for (weight, &node) in line[path.columns.clone()].iter_mut().zip(path.rows()) {
                let position = tree.first_position + node as usize;
                *weight = scaled(*weight, chunk.value_scales(position, position + 1).0[0]);
            }
        }
    }
}
