//! Dot products on AVX-512, with VNNI and without.
//!
//! ```text
//! VNNI         sum = vpdpbusd(sum, w, x): one instruction multiplies 4 inputs of 16 outputs
//! without      as on AVX2 (see there), on registers of twice the width
//! ```
//!
//! Without VNNI the signs of weights of 8 bits go to the activations by a mask. Tried and dropped,
//! in a program of its own (six rows, GOP/s of a Zen 5 core, 377 as it is, 500 without any sign):
//! signs by exclusive or, with the sums of the negative weights added once per group (310); weights
//! widened to 16 bits once for all rows, activations of 16 bits (377).

use std::arch::x86_64::*;

use super::Dot;
use crate::simd::Avx512;

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
    type Part = ();
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
        w
    }

    #[inline(always)]
    fn no_part(self, _: Avx512) {}

    #[inline(always)]
    fn dot<const SIGNED: bool>(self, s: Avx512, sum: __m512i, w: __m512i, x: &[i8; 4]) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_dpbusd_epi32(sum, w, broadcast(s, x)) }
    }
}

/// Multiplication in 16 bits, as every AVX-512 with byte instructions has it.
#[derive(Clone, Copy)]
pub(super) struct Maddubs;

impl Dot<Avx512> for Maddubs {
    type I = __m512i;
    type Part = __m512i;
    const OFFSET: i32 = 0;
    const HAS_PARTS: bool = true;

    #[inline(always)]
    fn splat(self, _: Avx512, x: i32) -> __m512i {
        // SAFETY: `Avx512` proves that the instructions are there, here and below.
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
    fn dot<const SIGNED: bool>(self, s: Avx512, sum: __m512i, w: __m512i, x: &[i8; 4]) -> __m512i {
        if !SIGNED {
            let part = self.dot_part(s, self.no_part(s), w, x);
            return self.add_part(s, sum, part);
        }
        let x = broadcast(s, x);
        // SAFETY: as above.
        let product = unsafe {
            let x = _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(w), _mm512_setzero_si512(), x);
            _mm512_maddubs_epi16(_mm512_abs_epi8(w), x)
        };
        self.add_part(s, sum, product)
    }

    #[inline(always)]
    fn no_part(self, _: Avx512) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    fn dot_part(self, s: Avx512, part: __m512i, w: __m512i, x: &[i8; 4]) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_add_epi16(part, _mm512_maddubs_epi16(w, broadcast(s, x))) }
    }

    #[inline(always)]
    fn add_part(self, _: Avx512, sum: __m512i, part: __m512i) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_add_epi32(sum, _mm512_madd_epi16(part, _mm512_set1_epi16(1))) }
    }
}

/// Four activations for every output.
#[inline(always)]
fn broadcast(_: Avx512, x: &[i8; 4]) -> __m512i {
    // SAFETY: `Avx512` proves that the instructions are there; 4 bytes are read.
    unsafe { _mm512_set1_epi32(x.as_ptr().cast::<i32>().read_unaligned()) }
}
