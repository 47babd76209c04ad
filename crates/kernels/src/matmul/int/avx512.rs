//! Blocks and dot products on AVX-512: a line of 64 bytes is a register.

use std::arch::x86_64::*;

use super::Dot;
use crate::layout::int::Bytes;
use crate::rows::lanes::{Avx512, Simd};

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
    fn lookup(self, table: &[i8; 16], x: __m512i) -> __m512i {
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
    fn from_bits(self, from: &[u32; 16]) -> __m512 {
        // SAFETY: as above; 64 bytes are read.
        unsafe { _mm512_loadu_ps(from.as_ptr().cast()) }
    }
}

/// Proof that this CPU has `avx512_vnni`: one instruction multiplies 4 inputs of 16 outputs.
#[derive(Clone, Copy)]
pub(super) struct Vnni(());

impl Vnni {
    /// The proof.
    ///
    /// # Safety
    ///
    /// This CPU has `avx512vnni`.
    #[inline(always)]
    pub(super) unsafe fn assume() -> Self {
        Self(())
    }
}

impl Dot<Avx512> for Vnni {
    type I = __m512i;
    /// `Σ (w + 128) x - 128 Σ x = Σ w x`: the instruction wants one unsigned side.
    const OFFSET: i32 = 128;

    #[inline(always)]
    fn splat(self, _: Avx512, x: i32) -> __m512i {
        // SAFETY: the proofs are there, here and below.
        unsafe { _mm512_set1_epi32(x) }
    }

    #[inline(always)]
    fn to_float(self, _: Avx512, x: __m512i) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_cvtepi32_ps(x) }
    }

    #[inline(always)]
    fn signed(self, _: Avx512, w: __m512i) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_xor_si512(w, _mm512_set1_epi8(i8::MIN)) }
    }

    #[inline(always)]
    fn dot<const SIGNED: bool>(
        self,
        _: Avx512,
        mut sum: __m512i,
        w: &[__m512i; 4],
        x: &[i8; 16],
    ) -> __m512i {
        for quad in 0..4 {
            // SAFETY: as above; 4 of the 16 bytes are read.
            unsafe {
                let x = x.as_ptr().add(quad * 4).cast::<i32>().read_unaligned();
                sum = _mm512_dpbusd_epi32(sum, w[quad], _mm512_set1_epi32(x));
            }
        }
        sum
    }
}

const _: () = assert!(<Avx512 as Simd>::IS_WIDE);
