//! Queries, keys, values and weights in the order that tiles read ([`super`]): bf16, whatever they
//! are kept in.

use std::arch::x86_64::*;

use half::bf16;

use super::super::chunk::{Chunk, Vectors};
use super::super::score::KeyGroup;
use super::super::{BLOCK, CHUNK, HALF};
use crate::simd::tiles::{ROW_BYTES, ROWS, Stored};
use crate::simd::{Avx512, LANES};

/// An element type that tiles multiply: each of its numbers is one of bf16.
pub(in crate::ops::attention) trait Tiled: Vectors {
    /// Sixteen zeros, for values that do not exist.
    const ZEROS: &'static [Self; LANES];

    /// Element `n` of `low` and of `high` to places `2 n` and `2 n + 1`, as bf16; by way of floats,
    /// whose lower halves are zero.
    ///
    /// # Safety
    ///
    /// This CPU has the features of [`super::chunk`].
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

    /// The scale of a value may be infinite or NaN; it multiplies the weights of rows that see it.
    #[inline(always)]
    fn are_finite(_: &[Self]) -> bool {
        true
    }
}

/// The values of the columns of one block, as far as they exist.
#[derive(Clone, Copy)]
pub(super) struct Values<'a, T> {
    /// Each `[16 columns][padded]`; empty where the sequence has ended.
    halves: [&'a [T]; 2],
    padded: usize,
    /// Bytes from the values of each half to what is read for their columns next.
    to_coming: [usize; 2],
}

impl<'a, T: Tiled> Values<'a, T> {
    pub(super) const NONE: Self = Self { halves: [&[]; 2], padded: 0, to_coming: [0; 2] };

    pub(super) fn of(chunk: &Chunk<'a, T>, block: usize) -> Self {
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
    pub(super) fn are_finite(&self) -> bool {
        self.halves.iter().all(|half| T::are_finite(half))
    }

    /// Puts sixteen elements from `first` on in the order of tiles.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
    pub(super) fn arrange(&self, first: usize, out: &mut Stored) {
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
pub(super) fn arrange_keys<T: Tiled>(
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
pub(super) fn arrange_row(row: &[f32], at: usize, out: &mut [[Stored; 2]]) {
    for (block, out) in row.as_chunks::<BLOCK>().0.iter().zip(out) {
        arrange_halves(halves(block), &mut out[at / ROWS].rows_mut()[at % ROWS]);
    }
}

/// Puts floats that are bf16 in the order of tiles, in the first half of their place.
#[target_feature(enable = "avx512f")]
pub(super) fn arrange_in_place(line: &mut [f32]) {
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
pub(super) fn arrange_halves(halves: [__m512; 2], row: &mut [u8; ROW_BYTES]) {
    let [low, high] =
        halves.map(|half| _mm512_shuffle_epi32::<0b10_11_00_01>(_mm512_castps_si512(half)));
    let high = _mm512_and_si512(high, _mm512_set1_epi32(-0x1_0000));
    let both = _mm512_or_si512(_mm512_srli_epi32::<16>(low), high);
    // SAFETY: a row of a tile is 64 bytes.
    unsafe { _mm512_storeu_si512(row.as_mut_ptr().cast(), both) };
}
