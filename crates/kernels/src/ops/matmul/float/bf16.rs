//! bf16 weights and activations on AVX-512 BF16: one instruction multiplies pairs of 16 outputs.
//!
//! ```text
//! for each half of 32 inputs:
//!     part[MR][NR] = 0
//!     for each of its 8 pairs of inputs:
//!         w[NR] = load                          64 bytes: [16 outputs][k, k + 1]
//!         for each of MR rows: part[row][NR] = vdpbf16ps(part, w, broadcast x pair)
//!     total += part of the first half + part of the last
//! ```
//!
//! The instruction is `part = fma(x[k + 1], w[k + 1], part)`, then `part = fma(x[k], w[k], part)`,
//! each rounded to nearest even: within a half the canonical order of this layout. It takes numbers
//! below 2^-126 for zero, and instruction sets without it do not; no weight
//! of a trained model is that small.
//!
//! [`pays`] measures once whether the instruction is faster, because it may run at twice or at half
//! the rate of plain multiply-adds: 463 to 232 GFLOP/s on Zen 4, 170 to 370 where it is split up.
//!
//! Registers at MR = 8, NR = 2: 16 accumulators, 2 weights, a broadcast. At M = 1 four panels give
//! four chains, each a stream of its own, prefetched because hardware stops at page ends.

use std::arch::x86_64::*;
use std::sync::OnceLock;
use std::time::Instant;

use super::Tile;
use crate::layout::PANEL;
use crate::ops::activations::HalfRows;

/// Pairs of inputs of a half of 32, which has sums of its own.
const HALF_PAIRS: usize = 8;
/// Bytes ahead of the loads that each panel is prefetched.
const PREFETCH: usize = 1024;

/// Whether this CPU has the instruction.
pub(crate) fn is_supported() -> bool {
    is_x86_feature_detected!("avx512bf16")
}

/// Whether this CPU has the instruction and it is faster than plain multiply-adds; measured once,
/// in a millisecond or two. No result depends on the answer.
pub(crate) fn pays() -> bool {
    static PAYS: OnceLock<bool> = OnceLock::new();
    *PAYS.get_or_init(|| {
        let fastest = |f: unsafe fn() -> f32| {
            let time = |_| {
                let start = Instant::now();
                // SAFETY: the features were found, as the caller of this closure sees to.
                std::hint::black_box(unsafe { f() });
                start.elapsed()
            };
            (0..5).map(time).min().unwrap_or_default()
        };
        // The same number of products of each.
        is_supported() && fastest(dots) * 5 < fastest(multiply_adds) * 4
    })
}

/// A register as pairs of bf16.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn pairs(bits: __m512i) -> __m512bh {
    // SAFETY: both are 512 bits without a meaning of their own.
    unsafe { std::mem::transmute::<__m512i, __m512bh>(bits) }
}

/// Steps of the comparison.
const N_STEPS: usize = 10_000;

#[target_feature(enable = "avx512f,avx512bf16")]
fn dots() -> f32 {
    let mut acc = [_mm512_setzero_ps(); 12];
    let x = pairs(std::hint::black_box(_mm512_set1_epi16(0x3f80)));
    for _ in 0..N_STEPS {
        for acc in &mut acc {
            *acc = _mm512_dpbf16_ps(*acc, x, x);
        }
    }
    acc.iter().map(|acc| _mm512_reduce_add_ps(*acc)).sum()
}

#[target_feature(enable = "avx512f")]
fn multiply_adds() -> f32 {
    let mut acc = [_mm512_setzero_ps(); 12];
    let x = std::hint::black_box(_mm512_set1_ps(1.0));
    for _ in 0..2 * N_STEPS {
        for acc in &mut acc {
            *acc = _mm512_fmadd_ps(x, x, *acc);
        }
    }
    acc.iter().map(|acc| _mm512_reduce_add_ps(*acc)).sum()
}

/// `MR` rows by `NR` panels, from row `row` and panel `panel` of the tile.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn micro<const MR: usize, const NR: usize>(
    (): (),
    tile: &Tile<'_, HalfRows<'_>>,
    row: usize,
    panel: usize,
) {
    let zero = [[_mm512_setzero_ps(); NR]; MR];
    let (mut total, mut first) = (zero, zero);
    let n_pairs = tile.k.div_ceil(2);
    // SAFETY: the caller vouches that the rows and panels are inside the tile; see its invariants.
    unsafe {
        let w = tile.w.as_ptr().add(panel * tile.panel_bytes);
        let x = tile.x.data.as_ptr().add(row * tile.x.stride);
        for start in (0..n_pairs).step_by(HALF_PAIRS) {
            let mut part = zero;
            for pair in start..n_pairs.min(start + HALF_PAIRS) {
                let mut weights = [_mm512_setzero_si512(); NR];
                for (nr, weights) in weights.iter_mut().enumerate() {
                    let at = w.add(nr * tile.panel_bytes + pair * 64);
                    *weights = _mm512_loadu_si512(at.cast());
                    if MR <= 2 {
                        _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(PREFETCH).cast());
                    }
                }
                for (mr, part) in part.iter_mut().enumerate() {
                    let x = x.add(mr * tile.x.stride + pair * 2).cast::<i32>().read_unaligned();
                    let x = pairs(_mm512_set1_epi32(x));
                    for (part, weights) in part.iter_mut().zip(&weights) {
                        *part = _mm512_dpbf16_ps(*part, x, pairs(*weights));
                    }
                }
            }
            let is_even = (start / HALF_PAIRS).is_multiple_of(2);
            let is_first = is_even && start + HALF_PAIRS < n_pairs;
            if is_first {
                first = part;
                continue;
            }
            for ((total, first), part) in total.iter_mut().zip(&first).zip(&part) {
                for ((total, first), part) in total.iter_mut().zip(first).zip(part) {
                    *total = _mm512_add_ps(*total, _mm512_add_ps(*first, *part));
                }
            }
            first = zero;
        }
        for (mr, acc) in total.iter().enumerate() {
            for (nr, acc) in acc.iter().enumerate() {
                let mut values = [0.0; PANEL];
                _mm512_storeu_ps(values.as_mut_ptr(), *acc);
                tile.y.store(row + mr, panel + nr, &values);
            }
        }
    }
}

/// The kernel.
///
/// # Safety
///
/// This CPU has the features below.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(in crate::ops::matmul) unsafe fn tile(tile: &Tile<'_, HalfRows<'_>>) {
    walk_tile!(tile, (), micro [], tall 8: [5 => 2, 6 => 2, 7 => 2, 8 => 2], short 4: [1 => 4, 2 => 4, 3 => 4, 4 => 4]);
}
