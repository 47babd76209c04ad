//! Dot products on AVX2, with AVX-VNNI and without.
//!
//! ```text
//! unsigned, at most 63   two quads: t16 = maddubs(w, x) + maddubs(w', x')   at most 4 * 63 * 127
//!                        sum += madd(t16, 1)
//! signed                 |w| as unsigned, x with the sign of w: |w| (x sign w) = w x
//!                        t16 = maddubs(|w|, sign(x, w))                     at most 2 * 128 * 127
//!                        sum += madd(t16, 1)
//! AVX-VNNI               sum = vpdpbusd(sum, w, x) on half the width of AVX-512
//! ```
//!
//! A weight of -128 (only hostile or foreign files have it) gives the right product, too:
//! `abs_epi8` leaves 0x80, which `maddubs` reads as 128, and `sign_epi8` negates x, which is never
//! -128.
//!
//! Considered and not taken (reasoned, not measured): `w ^ 0x80` as the unsigned side, as on VNNI
//! (`2 * 255 * 127` saturates 16 bits); widening both sides to 16 bits (as many operations, twice
//! the registers); sums of 16 bits over a whole group (a tenth fewer operations for nibbles alone).

use std::arch::x86_64::*;

use super::Dot;
use crate::simd::bytes::avx2::Line;
use crate::simd::{Avx2, Simd};

/// Sixteen sums.
#[derive(Clone, Copy)]
pub(crate) struct Sums([__m256i; 2]);

/// Four activations for every output.
///
/// # Safety
///
/// This CPU has AVX2.
#[inline(always)]
unsafe fn broadcast(x: &[i8; 8], quad: usize) -> __m256i {
    // SAFETY: `quad` is below 2.
    unsafe { _mm256_set1_epi32(x.as_ptr().add(quad * 4).cast::<i32>().read_unaligned()) }
}

#[inline(always)]
fn splat(_: Avx2, x: i32) -> Sums {
    // SAFETY: `Avx2` proves that the instructions are there.
    unsafe { Sums([_mm256_set1_epi32(x); 2]) }
}

#[inline(always)]
fn to_float(_: Avx2, x: Sums) -> <Avx2 as Simd>::F {
    // SAFETY: as above.
    unsafe { Avx2::pair(_mm256_cvtepi32_ps(x.0[0]), _mm256_cvtepi32_ps(x.0[1])) }
}

/// Multiplication in 16 bits, as every AVX2 has it.
#[derive(Clone, Copy)]
pub(super) struct Maddubs;

impl Dot<Avx2> for Maddubs {
    type I = Sums;
    const OFFSET: i32 = 0;

    #[inline(always)]
    fn splat(self, s: Avx2, x: i32) -> Sums {
        splat(s, x)
    }

    #[inline(always)]
    fn to_float(self, s: Avx2, x: Sums) -> <Avx2 as Simd>::F {
        to_float(s, x)
    }

    #[inline(always)]
    fn signed(self, _: Avx2, w: Line) -> Line {
        // SAFETY: `Avx2` proves that the instructions are there.
        unsafe {
            let flip = _mm256_set1_epi8(i8::MIN);
            Line([_mm256_xor_si256(w.0[0], flip), _mm256_xor_si256(w.0[1], flip)])
        }
    }

    #[inline(always)]
    fn dot<const SIGNED: bool>(self, _: Avx2, mut sum: Sums, w: &[Line; 2], x: &[i8; 8]) -> Sums {
        // SAFETY: `Avx2` proves that the instructions are there.
        unsafe {
            let ones = _mm256_set1_epi16(1);
            let x = [broadcast(x, 0), broadcast(x, 1)];
            for (half, sum) in sum.0.iter_mut().enumerate() {
                let (w0, w1) = (w[0].0[half], w[1].0[half]);
                if SIGNED {
                    let t0 = _mm256_maddubs_epi16(_mm256_abs_epi8(w0), _mm256_sign_epi8(x[0], w0));
                    let t1 = _mm256_maddubs_epi16(_mm256_abs_epi8(w1), _mm256_sign_epi8(x[1], w1));
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(t0, ones));
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(t1, ones));
                } else {
                    let t0 = _mm256_maddubs_epi16(w0, x[0]);
                    let t1 = _mm256_maddubs_epi16(w1, x[1]);
                    let both = _mm256_madd_epi16(_mm256_add_epi16(t0, t1), ones);
                    *sum = _mm256_add_epi32(*sum, both);
                }
            }
        }
        sum
    }
}

/// `vpdpbusd` on 256 bits, by the encoding of AVX-VNNI or of AVX-512: the same operation.
macro_rules! vnni {
    ($(#[$doc:meta])* $name:ident, $dpbusd:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(super) struct $name(());

        impl $name {
            /// The proof.
            ///
            /// # Safety
            ///
            /// This CPU has the instruction.
            #[inline(always)]
            pub(super) unsafe fn assume() -> Self {
                Self(())
            }
        }

        impl Dot<Avx2> for $name {
            type I = Sums;
            /// As on AVX-512: one side is unsigned.
            const OFFSET: i32 = 128;

            #[inline(always)]
            fn splat(self, s: Avx2, x: i32) -> Sums {
                splat(s, x)
            }

            #[inline(always)]
            fn to_float(self, s: Avx2, x: Sums) -> <Avx2 as Simd>::F {
                to_float(s, x)
            }

            #[inline(always)]
            fn signed(self, _: Avx2, w: Line) -> Line {
                w
            }

            #[inline(always)]
            fn dot<const SIGNED: bool>(
                self,
                _: Avx2,
                mut sum: Sums,
                w: &[Line; 2],
                x: &[i8; 8],
            ) -> Sums {
                for (quad, w) in w.iter().enumerate() {
                    // SAFETY: both proofs are there.
                    unsafe {
                        let x = broadcast(x, quad);
                        sum.0[0] = $dpbusd(sum.0[0], w.0[0], x);
                        sum.0[1] = $dpbusd(sum.0[1], w.0[1], x);
                    }
                }
                sum
            }
        }
    };
}

vnni! {
    /// Proof that this CPU has `avx_vnni`.
    AvxVnni, _mm256_dpbusd_avx_epi32
}

#[cfg(test)]
vnni! {
    /// Proof that this CPU has `avx512_vnni` and `avx512vl`: the twin of [`AvxVnni`] for tests.
    Avx512VlVnni, _mm256_dpbusd_epi32
}
