//! Queries, keys, values and weights in the order that tiles read ([`super`]): bf16, whatever they
//! are kept in.

use std::arch::x86_64::*;

use super::super::interleaved::{Interleave, LINE, Values, prefetch};
use super::super::score::KeyGroup;
use super::super::{BLOCK, HALF};
use crate::simd::LANES;
use crate::simd::tiles::{ROW_BYTES, ROWS, Stored};

const _: () = assert!(ROW_BYTES == LINE, "sixteen pairs are a row of a tile");

/// Puts sixteen elements of a block of values from `first` on in the order of tiles.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn arrange_values<T: Interleave>(
    values: &Values<'_, T>,
    first: usize,
    out: &mut Stored,
) {
    let line = |half: usize, t: usize| -> &[T; LANES] {
        if values.has(half) { &values.lines::<1>(half, t, first)[0] } else { T::ZEROS }
    };
    for (j, row) in out.rows_mut().iter_mut().enumerate() {
        let (low, high) = (line(0, j ^ 1), line(1, j ^ 1));
        // SAFETY: this function has the features.
        unsafe { T::interleave(low, high, row) };
        if (first * size_of::<T>()).is_multiple_of(LINE) {
            values.prefetch_coming(0, low);
            values.prefetch_coming(1, high);
        }
    }
}

/// Puts the keys of a group in the order of tiles, as group `at` of each block; `next` bytes after
/// each line is what is read next.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn arrange_keys<T: Interleave>(
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
