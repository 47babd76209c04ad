//! Dot products on AVX-512, with VNNI and without.
//!
//! ```text
//! VNNI         sum = vpdpbusd(sum, w, x): one instruction multiplies 4 inputs of 16 outputs
//! without      as on AVX2 (see there), on registers of twice the width
//! ```
//!
//! Without VNNI the signs of weights of 8 bits go to the activations by a mask.
//!
//! [`Dot::pin`] holds the compiler to the order in which the loop is written, all rows for one quad of
//! weights before the next. Left alone, it keeps quads of weights on the stack where a layout is simple
//! enough for it to see all of them. Two threads of an Ice Lake, GOP/s at M = 512, without pins and
//! with them: without VNNI Q8G32 224 and 272, Q4G32 389 and 470, Iq4Nl 235 and 292, Iq4Xs 296 and 297;
//! with VNNI Q8G32 811 and 828, Q4G32 at M = 8 492 and 558.
//!
//! Tried and dropped without VNNI, in a program of its own (six rows, GOP/s of a Zen 5 core, 377 as it
//! is, 500 without any sign): signs by exclusive or, with the sums of the negative weights added once
//! per group (310); weights widened to 16 bits once for all rows, activations of 16 bits (377). On the
//! Ice Lake: exact sums as multiply-adds of f32, whose weights and activations were widened to floats
//! once for all rows (Q8G32 285 at M = 512, where integers with pins reach 300; six rows by four panels
//! with the accumulators in memory, two panels with all in registers 220).

use std::arch::asm;
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
    const HAS_PINS: bool = true;

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
    fn pin(self, _: Avx512, sum: __m512i) -> __m512i {
        // SAFETY: `Avx512` proves that the registers are there.
        unsafe { pin(sum) }
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
    /// Eight rows take longer than memory; they would only get a longer loop (Q4G32 3 % slower).
    const MOST_ROWS_FAR: usize = 7;
    const HAS_PARTS: bool = true;
    const HAS_PINS: bool = true;

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
    fn pin(self, _: Avx512, sum: __m512i) -> __m512i {
        // SAFETY: `Avx512` proves that the registers are there.
        unsafe { pin(sum) }
    }

    #[inline(always)]
    fn pin_part(self, _: Avx512, part: __m512i) -> __m512i {
        // SAFETY: as above.
        unsafe { pin(part) }
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

/// See [`Dot::pin`].
#[inline]
#[target_feature(enable = "avx512f")]
fn pin(mut sum: __m512i) -> __m512i {
    // SAFETY: no instruction.
    unsafe {
        asm!("/* {0} */", inout(zmm_reg) sum, options(nomem, nostack, preserves_flags));
    }
    sum
}
