//! A line of 64 bytes is two registers, of outputs 0-7 and 8-15.

use std::arch::x86_64::*;

use super::Bytes;
use crate::simd::Avx2;

/// Both halves of a line.
#[derive(Clone, Copy)]
pub(crate) struct Line(pub(crate) [__m256i; 2]);

impl Bytes for Avx2 {
    type B = Line;

    #[inline(always)]
    fn bytes(self, from: &[u8; 64]) -> Line {
        let at = from.as_ptr();
        // SAFETY: `self` proves that this CPU has AVX2, here and below; 64 bytes are read.
        unsafe { Line([_mm256_loadu_si256(at.cast()), _mm256_loadu_si256(at.add(32).cast())]) }
    }

    #[inline(always)]
    fn and(self, x: Line, mask: u8) -> Line {
        // SAFETY: as above.
        unsafe {
            let mask = _mm256_set1_epi8(mask.cast_signed());
            Line([_mm256_and_si256(x.0[0], mask), _mm256_and_si256(x.0[1], mask)])
        }
    }

    #[inline(always)]
    fn or(self, x: Line, y: Line) -> Line {
        // SAFETY: as above.
        unsafe { Line([_mm256_or_si256(x.0[0], y.0[0]), _mm256_or_si256(x.0[1], y.0[1])]) }
    }

    #[inline(always)]
    fn shr(self, x: Line, n: usize) -> Line {
        // SAFETY: as above.
        unsafe {
            let n = _mm_cvtsi32_si128(n as i32);
            Line([_mm256_srl_epi16(x.0[0], n), _mm256_srl_epi16(x.0[1], n)])
        }
    }

    #[inline(always)]
    fn shl(self, x: Line, n: usize) -> Line {
        // SAFETY: as above.
        unsafe {
            let n = _mm_cvtsi32_si128(n as i32);
            Line([_mm256_sll_epi16(x.0[0], n), _mm256_sll_epi16(x.0[1], n)])
        }
    }

    #[inline(always)]
    fn lookup(self, table: &[u8; 16], x: Line) -> Line {
        // SAFETY: as above; 16 bytes are read.
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            Line([_mm256_shuffle_epi8(table, x.0[0]), _mm256_shuffle_epi8(table, x.0[1])])
        }
    }

    #[inline(always)]
    fn trit(self, x: Line, power: u8) -> Line {
        Line([trit(self, x.0[0], power), trit(self, x.0[1], power)])
    }

    #[inline(always)]
    fn halves(self, from: &[u8; 32]) -> Self::F {
        let at = from.as_ptr();
        // SAFETY: as above, with the F16C that comes with the proof; 32 bytes are read.
        unsafe {
            let low = _mm256_cvtph_ps(_mm_loadu_si128(at.cast()));
            Self::pair(low, _mm256_cvtph_ps(_mm_loadu_si128(at.add(16).cast())))
        }
    }

    #[inline(always)]
    fn unsigned(self, from: &[u8; 16]) -> Self::F {
        let at = from.as_ptr();
        // SAFETY: as above; 16 bytes are read.
        unsafe {
            let low = _mm256_cvtepu8_epi32(_mm_loadl_epi64(at.cast()));
            let high = _mm256_cvtepu8_epi32(_mm_loadl_epi64(at.add(8).cast()));
            Self::pair(_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high))
        }
    }

    #[inline(always)]
    fn signed(self, from: &[u8; 16]) -> Self::F {
        let at = from.as_ptr();
        // SAFETY: as above; 16 bytes are read.
        unsafe {
            let low = _mm256_cvtepi8_epi32(_mm_loadl_epi64(at.cast()));
            let high = _mm256_cvtepi8_epi32(_mm_loadl_epi64(at.add(8).cast()));
            Self::pair(_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high))
        }
    }

    #[inline(always)]
    fn floats(self, from: &[u8; 64]) -> Self::F {
        let at = from.as_ptr();
        // SAFETY: as above; 64 bytes are read.
        unsafe { Self::pair(_mm256_loadu_ps(at.cast()), _mm256_loadu_ps(at.add(32).cast())) }
    }

    #[inline(always)]
    fn words(self, from: &[u32; 16]) -> Self::F {
        let at = from.as_ptr();
        // SAFETY: as above; 64 bytes are read.
        unsafe { Self::pair(_mm256_loadu_ps(at.cast()), _mm256_loadu_ps(at.add(8).cast())) }
    }

    #[inline(always)]
    fn bf16_pairs(self, from: &[u8; 64]) -> [Self::F; 2] {
        let Line([low, high]) = self.bytes(from);
        // SAFETY: as above.
        unsafe {
            let mask = _mm256_set1_epi32(0xFFFF_0000_u32.cast_signed());
            let first = |pairs| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs));
            let second = |pairs| _mm256_castsi256_ps(_mm256_and_si256(pairs, mask));
            [Self::pair(first(low), first(high)), Self::pair(second(low), second(high))]
        }
    }

    #[inline(always)]
    fn codes(self, table: &[f32; 16], from: &[u8; 64], shift: usize) -> Self::F {
        let Line([low, high]) = self.bytes(from);
        Self::pair(codes(self, table, low, shift), codes(self, table, high, shift))
    }
}

/// `table[word >> shift & 15]` of eight words: both halves of the table, and the fourth bit
/// chooses.
#[inline(always)]
fn codes(_: Avx2, table: &[f32; 16], words: __m256i, shift: usize) -> __m256 {
    // SAFETY: `Avx2` proves that the instructions are there; 64 bytes are read.
    unsafe {
        let words = _mm256_srl_epi32(words, _mm_cvtsi32_si128(shift as i32));
        let low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table.as_ptr()), words);
        let high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table.as_ptr().add(8)), words);
        _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32::<28>(words)))
    }
}

/// See [`Bytes::trit`].
#[inline(always)]
fn trit(_: Avx2, x: __m256i, power: u8) -> __m256i {
    // SAFETY: `Avx2` proves that the instructions are there.
    unsafe {
        let power = _mm256_set1_epi16(i16::from(power));
        let (low, three) = (_mm256_set1_epi16(0xff), _mm256_set1_epi16(3));
        let even = _mm256_and_si256(_mm256_mullo_epi16(x, power), low);
        let odd = _mm256_mullo_epi16(_mm256_srli_epi16::<8>(x), power);
        let odd = _mm256_and_si256(odd, low);
        let even = _mm256_srli_epi16::<8>(_mm256_mullo_epi16(even, three));
        let odd = _mm256_andnot_si256(low, _mm256_mullo_epi16(odd, three));
        _mm256_or_si256(even, odd)
    }
}
