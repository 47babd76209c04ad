//! Products of a few rows with many terms on AVX-512 BF16, where terms are pairs of bf16.
//!
//! ```text
//! factors [MR][n]     terms [n][NR][16]        sums [MR][NR][16] += factors · terms
//!                                              each factor, lane and term is a pair of bf16
//! for each block of 16 pairs, for each half of it:
//!     part = 0
//!     for each of its 8 pairs t:
//!         part[row][nr] = vdpbf16ps(part, terms[t][nr], broadcast factors[row][t])
//! sums += part of the first half + part of the last
//! ```
//!
//! The instruction is `part = fma(x.1, w.1, part)`, then `part = fma(x.0, w.0, part)`, each rounded
//! to nearest even: the order of [`products`](super::products) in halves. It takes numbers below
//! 2⁻¹²⁶ for zero.

use std::arch::asm;
use std::arch::x86_64::*;

use super::LANES;
use super::products::Rows;

/// Pairs that the inner loop takes at a time.
const STEP: usize = 4;
/// Pairs that have a sum of their own.
const HALF: usize = 8;

/// Terms of `NR` vectors.
pub(crate) trait Terms<const NR: usize>: Copy {
    /// Number of pairs, whole blocks of 16.
    fn len(self) -> usize;

    /// Pair `t` of vector `nr`.
    ///
    /// # Safety
    ///
    /// There is such a pair, `nr < NR`, and this CPU has the features of [`multiply`].
    unsafe fn load(self, t: usize, nr: usize) -> __m512i;
}

/// Terms that lie in order.
impl<const NR: usize> Terms<NR> for &[[[f32; LANES]; NR]] {
    fn len(self) -> usize {
        <[_]>::len(self)
    }

    #[inline]
    #[target_feature(
        enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi"
    )]
    unsafe fn load(self, t: usize, nr: usize) -> __m512i {
        // SAFETY: as the caller vouches.
        unsafe { _mm512_loadu_si512(self.get_unchecked(t).get_unchecked(nr).as_ptr().cast()) }
    }
}

/// Adds the products of `MR` rows with all terms to their sums. A factor is a pair in the place of
/// a float.
///
/// # Panics
///
/// When a row of factors or of sums ends before the terms do.
#[expect(clippy::needless_range_loop, reason = "sums and terms have the same vectors")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi")]
pub(crate) fn multiply<const MR: usize, const NR: usize>(rows: Rows<'_>, terms: impl Terms<NR>) {
    let Rows { factors, stride, sums, sum_stride, adds } = rows;
    let has_rows = factors.len() >= (MR - 1) * stride + terms.len()
        && sums.len() >= (MR - 1) * sum_stride + NR * LANES;
    assert!(
        terms.len().is_multiple_of(2 * HALF) && has_rows,
        "invariant: rows have a factor for each term, and their sums"
    );
    // SAFETY: the rows were checked; the loops read each factor and each term once.
    unsafe {
        let (mut x, mut t) = (factors.as_ptr(), 0);
        let sums = sums.as_mut_ptr();
        let mut has_sums = if adds { u16::MAX } else { 0 };
        let mut first = [[_mm512_setzero_ps(); NR]; MR];
        for idx in 0..terms.len() / HALF {
            let mut acc = [[_mm512_setzero_ps(); NR]; MR];
            for _ in 0..HALF / STEP {
                for i in 0..STEP {
                    let mut term = [_mm512_setzero_si512(); NR];
                    for nr in 0..NR {
                        term[nr] = terms.load(t + i, nr);
                    }
                    for mr in 0..MR {
                        let x = _mm512_castps_si512(_mm512_set1_ps(*x.add(mr * stride + i)));
                        for nr in 0..NR {
                            acc[mr][nr] = _mm512_dpbf16_ps(acc[mr][nr], pairs(term[nr]), pairs(x));
                        }
                    }
                }
                (x, t) = (x.add(STEP), t + STEP);
            }
            if idx % 2 == 0 {
                first = acc;
                continue;
            }
            for mr in 0..MR {
                for nr in 0..NR {
                    let sum = sums.add(mr * sum_stride + nr * LANES);
                    let before = _mm512_maskz_loadu_ps(has_sums, sum);
                    let block = _mm512_add_ps(first[mr][nr], acc[mr][nr]);
                    _mm512_storeu_ps(sum, _mm512_add_ps(before, block));
                }
            }
            has_sums = u16::MAX;
            // The compiler would keep the sums on the stack.
            asm!("", options(nostack, preserves_flags));
        }
    }
}

/// A register as pairs of bf16.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn pairs(bits: __m512i) -> __m512bh {
    // SAFETY: both are 512 bits without a meaning of their own.
    unsafe { std::mem::transmute::<__m512i, __m512bh>(bits) }
}

/// Writes the upper halves of floats, in which bf16 lie, side by side at the beginning of the line:
/// pairs in the place of floats. Floats of a part of sixteen are left as they are.
#[target_feature(enable = "avx512f")]
pub(crate) fn narrow_in_place(line: &mut [f32]) {
    for at in (0..line.len() / LANES * LANES).step_by(LANES) {
        let x = line[at..].as_ptr();
        let to = line[at / 2..].as_mut_ptr();
        // SAFETY: sixteen floats begin at `at`; eight of those before them, or the first of them,
        // take their halves.
        unsafe {
            let bits = _mm512_srli_epi32::<16>(_mm512_castps_si512(_mm512_loadu_ps(x)));
            _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(bits));
        }
    }
}
