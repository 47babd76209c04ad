//! A line of 64 bytes is a register.

use std::arch::x86_64::*;

use super::Bytes;
use crate::simd::Avx512;

impl Bytes for Avx512 {
    type B = __m512i;

    #[inline(always)]
    fn bytes(self, from: &[u8; 64]) -> __m512i {
        // SAFETY: `self` proves that this CPU has AVX-512, here and below; 64 bytes are read.
        unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
    }

    #[inline(always)]
    fn and(self, x: __m512i, mask: u8) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_and_si512(x, _mm512_set1_epi8(mask.cast_signed())) }
    }

    #[inline(always)]
    fn or(self, x: __m512i, y: __m512i) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_or_si512(x, y) }
    }

    #[inline(always)]
    fn shr(self, x: __m512i, n: usize) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_srl_epi16(x, _mm_cvtsi32_si128(n as i32)) }
    }

    #[inline(always)]
    fn shl(self, x: __m512i, n: usize) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_sll_epi16(x, _mm_cvtsi32_si128(n as i32)) }
    }

    #[inline(always)]
    fn lookup(self, table: &[u8; 16], x: __m512i) -> __m512i {
        // SAFETY: as above; 16 bytes are read.
        unsafe {
            let table = _mm_loadu_si128(table.as_ptr().cast());
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), x)
        }
    }

    #[inline(always)]
    fn trit(self, x: __m512i, power: u8) -> __m512i {
        // SAFETY: as above.
        unsafe {
            let power = _mm512_set1_epi16(i16::from(power));
            let (low, three) = (_mm512_set1_epi16(0xff), _mm512_set1_epi16(3));
            let even = _mm512_and_si512(_mm512_mullo_epi16(x, power), low);
            let odd = _mm512_mullo_epi16(_mm512_srli_epi16::<8>(x), power);
            let odd = _mm512_and_si512(odd, low);
            let even = _mm512_srli_epi16::<8>(_mm512_mullo_epi16(even, three));
            let odd = _mm512_andnot_si512(low, _mm512_mullo_epi16(odd, three));
            _mm512_or_si512(even, odd)
        }
    }

    #[inline(always)]
    fn halves(self, from: &[u8; 32]) -> __m512 {
        // SAFETY: as above; 32 bytes are read.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())) }
    }

    #[inline(always)]
    fn unsigned(self, from: &[u8; 16]) -> __m512 {
        // SAFETY: as above; 16 bytes are read.
        unsafe {
            let bytes = _mm_loadu_si128(from.as_ptr().cast());
            _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes))
        }
    }

    #[inline(always)]
    fn signed(self, from: &[u8; 16]) -> __m512 {
        // SAFETY: as above; 16 bytes are read.
        unsafe {
            let bytes = _mm_loadu_si128(from.as_ptr().cast());
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))
        }
    }

    #[inline(always)]
    fn floats(self, from: &[u8; 64]) -> __m512 {
        // SAFETY: as above; 64 bytes are read.
        unsafe { _mm512_loadu_ps(from.as_ptr().cast()) }
    }

    #[inline(always)]
    fn words(self, from: &[u32; 16]) -> __m512 {
        // SAFETY: as above; 64 bytes are read.
        unsafe { _mm512_loadu_ps(from.as_ptr().cast()) }
    }

    #[inline(always)]
    fn bf16_pairs(self, from: &[u8; 64]) -> [__m512; 2] {
        let pairs = self.bytes(from);
        // SAFETY: as above.
        unsafe {
            let mask = _mm512_set1_epi32(0xFFFF_0000_u32.cast_signed());
            [
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)),
                _mm512_castsi512_ps(_mm512_and_si512(pairs, mask)),
            ]
        }
    }

    #[inline(always)]
    fn codes(self, table: &[f32; 16], from: &[u8; 64], shift: usize) -> __m512 {
        let words = self.bytes(from);
        // SAFETY: as above; 64 bytes are read. The permutation looks at four bits of each word.
        unsafe {
            let words = _mm512_srl_epi32(words, _mm_cvtsi32_si128(shift as i32));
            _mm512_permutexvar_ps(words, _mm512_loadu_ps(table.as_ptr()))
        }
    }
}
