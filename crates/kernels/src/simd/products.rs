//! Products of a few rows with many terms on AVX-512, where the terms are floats in memory.
//!
//! ```text
//! factors [MR][n]     terms [n][NR][16]        sums [MR][NR][16] += factors · terms
//!
//! for each term t: acc[row][nr] = fma(broadcast factors[row][t], terms[t][nr], acc[row][nr])
//! ```
//!
//! `acc` begins with the sums before. In halves it begins at 0 with each 16 terms, and after every
//! second 16 `sum += first + acc`; of each pair of factors the second comes first, and the terms lie in
//! the order in which they are added ([`in_order`]).
//!
//! With six rows of four vectors, 24 multiply-adds have 10 loads, most of them from the first-level
//! cache, and 24 + 4 + 1 of 32 registers are in use.

use std::arch::asm;
use std::arch::x86_64::*;

use super::LANES;

/// Terms that the inner loop takes at a time.
const STEP: usize = 4;
/// Terms that have a sum of their own, in halves.
const HALF: usize = 16;

/// Rows of factors, and the sums of their products.
pub(crate) struct Rows<'a> {
    /// The first row of factors begins here, each next one `stride` floats later.
    pub(crate) factors: &'a [f32],
    pub(crate) stride: usize,
    /// The same for the sums, which are `NR` vectors per row.
    pub(crate) sums: &'a mut [f32],
    pub(crate) sum_stride: usize,
    /// Whether products are added to the sums, or replace them.
    pub(crate) adds: bool,
}

/// The place of term `t` among the terms.
pub(crate) const fn in_order(t: usize, in_halves: bool) -> usize {
    if in_halves { t ^ 1 } else { t }
}

/// Adds the products of `MR` rows with all terms, a multiple of 4, and of 32 in halves, to their sums.
///
/// # Panics
///
/// When a row of factors or of sums ends before the terms do.
#[expect(clippy::needless_range_loop, reason = "sums and terms have the same vectors")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
pub(crate) fn multiply<const MR: usize, const NR: usize, const IN_HALVES: bool>(
    rows: Rows<'_>,
    terms: &[[[f32; LANES]; NR]],
) {
    let Rows { factors, stride, sums, sum_stride, adds } = rows;
    let part = if IN_HALVES { HALF } else { terms.len() };
    let has_whole_parts = terms.len().is_multiple_of(if IN_HALVES { 2 * HALF } else { STEP });
    assert!(
        has_whole_parts
            && factors.len() >= (MR - 1) * stride + terms.len()
            && sums.len() >= (MR - 1) * sum_stride + NR * LANES,
        "invariant: rows have a factor for each term, and their sums"
    );
    // SAFETY: the rows were checked; the loops read each factor and each term once.
    unsafe {
        let mut x = factors.as_ptr();
        let mut w = terms.as_ptr().cast::<f32>();
        let sums = sums.as_mut_ptr();
        let mut has_sums = if adds { u16::MAX } else { 0 };
        let mut first = [[_mm512_setzero_ps(); NR]; MR];
        for idx in 0..terms.len() / part {
            let mut acc = [[_mm512_setzero_ps(); NR]; MR];
            if !IN_HALVES {
                for mr in 0..MR {
                    for nr in 0..NR {
                        let sum = sums.add(mr * sum_stride + nr * LANES);
                        acc[mr][nr] = _mm512_maskz_loadu_ps(has_sums, sum);
                    }
                }
            }
            for _ in 0..part / STEP {
                for i in 0..STEP {
                    let mut term = [_mm512_setzero_ps(); NR];
                    for nr in 0..NR {
                        term[nr] = _mm512_loadu_ps(w.add((i * NR + nr) * LANES));
                    }
                    for mr in 0..MR {
                        let x = _mm512_set1_ps(*x.add(mr * stride + in_order(i, IN_HALVES)));
                        for nr in 0..NR {
                            acc[mr][nr] = _mm512_fmadd_ps(x, term[nr], acc[mr][nr]);
                        }
                    }
                }
                (x, w) = (x.add(STEP), w.add(STEP * NR * LANES));
            }
            if IN_HALVES && idx % 2 == 0 {
                first = acc;
                continue;
            }
            for mr in 0..MR {
                for nr in 0..NR {
                    let sum = sums.add(mr * sum_stride + nr * LANES);
                    let mut y = acc[mr][nr];
                    if IN_HALVES {
                        let before = _mm512_maskz_loadu_ps(has_sums, sum);
                        y = _mm512_add_ps(before, _mm512_add_ps(first[mr][nr], y));
                    }
                    _mm512_storeu_ps(sum, y);
                }
            }
            has_sums = u16::MAX;
            // The compiler would keep the sums on the stack.
            asm!("", options(nostack, preserves_flags));
        }
    }
}
