//! Dot products on AVX2, with AVX-VNNI and without.
//!
//! ```text
//! unsigned, at most 63   t16 += maddubs(w, x) over 2, 4 or 8 quads, as many as fit into 16 bits:
//!                        4 * 63 * 127, 8 * 31 * 127, 16 * 15 * 127
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
//! Registers at MR = 4: 8 sums of halves, 4 of weights and their absolute values, a broadcast, the
//! ones, two products. Left alone, the compiler multiplies a whole row before the next one and keeps
//! the weights of all quads on the stack (116 accesses for 64 products); [`Dot::pin`] holds it to
//! the order in which the loop is written.
//!
//! AVX-VNNI has no pins. From two rows on it reads bytes that hold two nibbles once for the low nibble
//! and once more for the high one ([`Dot::READS_AGAIN`]), which leaves 8 registers free (at 3 rows on a
//! Granite Rapids: IQ4_NL 12 ns per group of a panel in place of 15). At one row, where reading twice
//! takes up to 30 % longer, it keeps them.
//!
//! Tried and dropped (GOP/s of one thread of a Zen 4 for Q8G32 at M = 8, 131 as it is): no pins (77,
//! and Q4G32 180 instead of 232); an empty `asm!` that only orders loads (98, Q4G32 93); both sides
//! widened to 16 bits, without the signs (108). Considered and not taken: `w ^ 0x80` as the unsigned
//! side, as on VNNI (`2 * 255 * 127` saturates 16 bits).
//!
//! Tried and dropped, too: weights and activations widened to 16 bits in memory, once for all rows and
//! all panels, and six rows by one panel at a time, with float accumulators in memory. In a program of
//! its own it gave 151 at 96 rows and 125 at 8, where this loop has 129; the limit of `vpmaddwd` and
//! `vpaddd` without anything else is 193. In the engine Q8G32 took 1.08 of this loop's speed at 512
//! rows, 1.03 at 64 and 0.95 at 32, too little for a second kernel.

use std::arch::asm;
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
unsafe fn broadcast(x: &[i8; 4]) -> __m256i {
    // SAFETY: 4 bytes are read.
    unsafe { _mm256_set1_epi32(x.as_ptr().cast::<i32>().read_unaligned()) }
}

/// See [`Dot::pin`].
#[inline]
#[target_feature(enable = "avx2")]
fn pin(mut sums: Sums) -> Sums {
    for sum in &mut sums.0 {
        // SAFETY: no instruction.
        unsafe {
            asm!("/* {0} */", inout(ymm_reg) * sum, options(nomem, nostack, preserves_flags));
        }
    }
    sums
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
    type Part = Sums;
    const OFFSET: i32 = 0;
    const HAS_PARTS: bool = true;
    const HAS_PINS: bool = true;

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
    fn dot<const SIGNED: bool>(self, s: Avx2, sum: Sums, w: Line, x: &[i8; 4]) -> Sums {
        if !SIGNED {
            let part = self.dot_part(s, self.no_part(s), w, x);
            return self.add_part(s, sum, part);
        }
        // SAFETY: `Avx2` proves that the instructions are there.
        unsafe {
            let x = broadcast(x);
            let low = _mm256_maddubs_epi16(_mm256_abs_epi8(w.0[0]), _mm256_sign_epi8(x, w.0[0]));
            let high = _mm256_maddubs_epi16(_mm256_abs_epi8(w.0[1]), _mm256_sign_epi8(x, w.0[1]));
            self.add_part(s, sum, Sums([low, high]))
        }
    }

    #[inline(always)]
    fn pin(self, _: Avx2, sum: Sums) -> Sums {
        // SAFETY: `Avx2` proves that the registers are there.
        unsafe { pin(sum) }
    }

    #[inline(always)]
    fn pin_part(self, _: Avx2, part: Sums) -> Sums {
        // SAFETY: `Avx2` proves that the registers are there.
        unsafe { pin(part) }
    }

    #[inline(always)]
    fn no_part(self, s: Avx2) -> Sums {
        splat(s, 0)
    }

    #[inline(always)]
    fn dot_part(self, _: Avx2, mut part: Sums, w: Line, x: &[i8; 4]) -> Sums {
        // SAFETY: `Avx2` proves that the instructions are there.
        unsafe {
            let x = broadcast(x);
            for (part, w) in part.0.iter_mut().zip(w.0) {
                *part = _mm256_add_epi16(*part, _mm256_maddubs_epi16(w, x));
            }
        }
        part
    }

    #[inline(always)]
    fn add_part(self, _: Avx2, mut sum: Sums, part: Sums) -> Sums {
        for (sum, part) in sum.0.iter_mut().zip(part.0) {
            // SAFETY: `Avx2` proves that the instructions are there.
            unsafe {
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(part, _mm256_set1_epi16(1)));
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
            type Part = ();
            /// As on AVX-512: one side is unsigned.
            const OFFSET: i32 = 128;
            const READS_AGAIN: bool = true;

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
            fn no_part(self, _: Avx2) {}

            #[inline(always)]
            fn dot<const SIGNED: bool>(
                self,
                _: Avx2,
                mut sum: Sums,
                w: Line,
                x: &[i8; 4],
            ) -> Sums {
                // SAFETY: both proofs are there.
                unsafe {
                    let x = broadcast(x);
                    sum.0[0] = $dpbusd(sum.0[0], w.0[0], x);
                    sum.0[1] = $dpbusd(sum.0[1], w.0[1], x);
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
