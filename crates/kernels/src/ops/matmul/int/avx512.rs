//! Dot products on AVX-512 VNNI: one instruction multiplies 4 inputs of 16 outputs.

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
    fn dot<const SIGNED: bool>(
        self,
        _: Avx512,
        mut sum: __m512i,
        w: &[__m512i; 2],
        x: &[i8; 8],
    ) -> __m512i {
        for (quad, w) in w.iter().enumerate() {
            // SAFETY: as above; 4 of the 8 bytes are read.
            unsafe {
                let x = x.as_ptr().add(quad * 4).cast::<i32>().read_unaligned();
                sum = _mm512_dpbusd_epi32(sum, *w, _mm512_set1_epi32(x));
            }
        }
        sum
    }
}
