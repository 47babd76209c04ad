//! Keys and values as pairs of bf16, whatever they are kept in: the operands of instructions that
//! multiply pairs ([`tiles`](super::tiles), [`paired`](super::paired)).

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::chunk::{Chunk, Vectors};
use super::{BLOCK, CHUNK, HALF};
use crate::simd::byte_floats::e4m3_pairs;
use crate::simd::{Avx512, LANES};

/// Bytes of sixteen pairs, and of a line of memory.
pub(super) const LINE: usize = 64;

/// An element type whose numbers are numbers of bf16.
pub(super) trait Interleave: Vectors {
    /// Sixteen zeros, for values that do not exist.
    const ZEROS: &'static [Self; LANES];

    /// Element `n` of `low` and of `high` at places `2 n` and `2 n + 1`, as bf16; by way of floats,
    /// whose lower halves are zero.
    ///
    /// # Safety
    ///
    /// This CPU has the features below.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn pairs(low: &[Self; LANES], high: &[Self; LANES]) -> __m512i {
        // SAFETY: this function has the features.
        let s = unsafe { Avx512::assume() };
        let low = _mm512_srli_epi32::<16>(_mm512_castps_si512(Self::load(s, low)));
        _mm512_or_si512(low, _mm512_castps_si512(Self::load(s, high)))
    }

    /// The same on a CPU that has VBMI, too.
    ///
    /// # Safety
    ///
    /// This CPU has the features below.
    #[inline]
    #[target_feature(
        enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi"
    )]
    unsafe fn pairs_vbmi(low: &[Self; LANES], high: &[Self; LANES]) -> __m512i {
        // SAFETY: this function has the features.
        unsafe { Self::pairs(low, high) }
    }

    /// Writes [`pairs`](Self::pairs).
    ///
    /// # Safety
    ///
    /// This CPU has the features below.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn interleave(low: &[Self; LANES], high: &[Self; LANES], row: &mut [u8; LINE]) {
        // SAFETY: this function has the features; a row is 64 bytes.
        unsafe { _mm512_storeu_si512(row.as_mut_ptr().cast(), Self::pairs(low, high)) };
    }

    /// Whether all of them are finite.
    fn are_finite(values: &[Self]) -> bool;
}

impl Interleave for bf16 {
    const ZEROS: &'static [Self; LANES] = &[Self::ZERO; LANES];

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn pairs(low: &[Self; LANES], high: &[Self; LANES]) -> __m512i {
        const FROM: [u16; 2 * LANES] = {
            let mut from = [0; 2 * LANES];
            let mut place = 0;
            while place < from.len() {
                from[place] = (place / 2 + place % 2 * LANES) as u16;
                place += 1;
            }
            from
        };
        // SAFETY: both are 32 bytes, the places are 64.
        unsafe {
            let low = _mm512_castsi256_si512(_mm256_loadu_si256(low.as_ptr().cast()));
            let both = _mm512_inserti64x4::<1>(low, _mm256_loadu_si256(high.as_ptr().cast()));
            _mm512_permutexvar_epi16(_mm512_loadu_si512(FROM.as_ptr().cast()), both)
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
impl Interleave for u8 {
    const ZEROS: &'static [Self; LANES] = &[0; LANES];

    #[inline]
    #[target_feature(
        enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi"
    )]
    unsafe fn pairs_vbmi(low: &[Self; LANES], high: &[Self; LANES]) -> __m512i {
        e4m3_pairs(low, high)
    }

    #[inline(always)]
    fn are_finite(values: &[Self]) -> bool {
        // There is no infinity.
        values
            .chunks(CHUNK)
            .all(|values| values.iter().fold(true, |all, x| all & (x & 0x7f != 0x7f)))
    }
}

impl Interleave for i8 {
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

impl<'a, T: Interleave> Values<'a, T> {
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

    /// Whether there are values of half `half`; there are none where the sequence has ended.
    #[inline(always)]
    pub(super) fn has(&self, half: usize) -> bool {
        !self.halves[half].is_empty()
    }

    /// `V` times sixteen elements from `first` on of the value of column `t` of a half that there
    /// is.
    #[inline(always)]
    pub(super) fn lines<const V: usize>(
        &self,
        half: usize,
        t: usize,
        first: usize,
    ) -> &'a [[T; LANES]; V] {
        let line = self.halves[half][t * self.padded + first..].as_chunks().0.first_chunk();
        line.expect("invariant: values are padded")
    }

    /// The values of a half, and the bytes from each of them to what is read for its column next.
    #[inline(always)]
    pub(super) fn half(&self, half: usize) -> (&'a [T], usize) {
        (self.halves[half], self.to_coming[half])
    }

    /// Prefetches what is read after these elements of a half.
    #[inline(always)]
    pub(super) fn prefetch_coming(&self, half: usize, line: &[T; LANES]) {
        prefetch(line.as_ptr().wrapping_byte_add(self.to_coming[half]));
    }
}

/// Prefetches the line at `address` to the second-level cache.
#[inline(always)]
pub(super) fn prefetch<T>(address: *const T) {
    // SAFETY: a prefetch may name any address.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) };
}

/// Whether all values are finite that lie in blocks which some row does not see whole.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn unseen_are_finite<T: Interleave>(
    chunk: &Chunk<'_, T>,
    columns: Range<usize>,
) -> bool {
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
pub(super) fn blocks(columns: &Range<usize>) -> Range<usize> {
    columns.start / BLOCK..columns.end.div_ceil(BLOCK)
}
