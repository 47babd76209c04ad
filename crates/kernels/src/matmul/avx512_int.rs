//! Quantized weights on AVX-512 VNNI: one instruction multiplies 4 inputs of 16 outputs.
//!
//! ```text
//! for each group of 32 inputs:
//!     isum[MR][NR] = -128 * sum(x)  (q8)   or   -8 * sum(x)  (q4)
//!     for each quad of 4 inputs:
//!         w[NR] = load ^ 0x80       (q8: w + 128, as unsigned)   or   a nibble (q4: w + 8)
//!         for each of MR rows: isum = vpdpbusd(isum, w, broadcast x quad)  u8 x i8, exact
//!     acc[MR][NR] = fma(isum as f32, sx * sw[NR], acc)
//! ```
//!
//! `Σ (w + 128) x - 128 Σ x = Σ w x`, exactly, in wrapping or any other integer arithmetic that
//! ends in range. No partial sum leaves i32: `32 * 255 * 127 < 2^21`.
//!
//! Registers at MR = 8, NR = 2: 16 integer sums, 2 weights, a broadcast; some of the 16 float
//! accumulators rest on the stack and are touched once per group, every 128 dot products. Per group
//! and panel one row does 8 dot products and 3 float operations, so 80 % of the multiplier is the
//! limit. At M = 1 and 2 one panel is read at a time: the groups are independent chains already,
//! and one sequential stream can be prefetched across the ends of panels.
//!
//! Tried and dropped: 12 rows by 2 panels (all float accumulators on the stack: 58 instead of 71 %
//! of the multiplier at M = 64); two panels at M = 1 (the same speed within the noise; one stream is
//! simpler to prefetch).
//!
//! Considered and not taken: broadcasting `x + 128` as the unsigned side (saves the xor, needs the
//! sums of the weights in the file).

use std::arch::x86_64::*;

use super::Tile;
use crate::layout::{PANEL, Q4_BLOCK, Q8_BLOCK, SCALE_BYTES};
use crate::quantize::{GROUP, IntRows};

/// Rows of the tallest register tile.
const MAX_ROWS: usize = 8;
/// Bytes ahead of the loads that each panel is prefetched at M = 1.
const PREFETCH: usize = 2048;

/// `MR` rows by `NR` panels, from row `row` and panel `panel` of the tile.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn micro<const Q4: bool, const MR: usize, const NR: usize>(
    tile: &Tile<'_, IntRows<'_>>,
    row: usize,
    panel: usize,
) {
    let block_bytes = if Q4 { Q4_BLOCK } else { Q8_BLOCK };
    let n_groups = tile.k / GROUP;
    let flip = _mm512_set1_epi8(i8::MIN);
    let nibble = _mm512_set1_epi8(15);
    let mut acc = [[_mm512_setzero_ps(); NR]; MR];
    // SAFETY: the caller vouches that the rows and panels are inside the tile; see its invariants.
    unsafe {
        let x = tile.x.values.as_ptr().add(row * tile.x.stride);
        let scales = tile.x.scales.as_ptr().add(row * n_groups);
        let sums = tile.x.sums.as_ptr().add(row * n_groups);
        for group in 0..n_groups {
            let w = tile.w.as_ptr().add(panel * tile.panel_bytes + group * block_bytes);
            if MR <= 2 {
                for nr in 0..NR {
                    for line in 0..block_bytes.div_ceil(64) {
                        let at = w.wrapping_add(nr * tile.panel_bytes + PREFETCH + line * 64);
                        _mm_prefetch::<_MM_HINT_T0>(at.cast());
                    }
                }
            }
            let mut isum = [[_mm512_setzero_si512(); NR]; MR];
            for (mr, isum) in isum.iter_mut().enumerate() {
                let sum = *sums.add(mr * n_groups + group);
                *isum = [_mm512_set1_epi32(sum * if Q4 { -8 } else { -128 }); NR];
            }
            let x = x.add(group * GROUP);
            for quad in 0..GROUP / 4 {
                let mut weights = [_mm512_setzero_si512(); NR];
                for (nr, weights) in weights.iter_mut().enumerate() {
                    let at = w.add(nr * tile.panel_bytes + SCALE_BYTES);
                    *weights = if Q4 {
                        let pair = _mm512_loadu_si512(at.add(quad % 4 * 64).cast());
                        let shifted = if quad < 4 { pair } else { _mm512_srli_epi16::<4>(pair) };
                        _mm512_and_si512(shifted, nibble)
                    } else {
                        _mm512_xor_si512(_mm512_loadu_si512(at.add(quad * 64).cast()), flip)
                    };
                }
                for (mr, isum) in isum.iter_mut().enumerate() {
                    let x = x.add(mr * tile.x.stride + quad * 4).cast::<i32>().read_unaligned();
                    let x = _mm512_set1_epi32(x);
                    for (isum, weights) in isum.iter_mut().zip(&weights) {
                        *isum = _mm512_dpbusd_epi32(*isum, *weights, x);
                    }
                }
            }
            let mut sw = [_mm512_setzero_ps(); NR];
            for (nr, sw) in sw.iter_mut().enumerate() {
                let at = w.add(nr * tile.panel_bytes);
                *sw = _mm512_cvtph_ps(_mm256_loadu_si256(at.cast()));
            }
            for (mr, (acc, isum)) in acc.iter_mut().zip(&isum).enumerate() {
                let sx = _mm512_set1_ps(*scales.add(mr * n_groups + group));
                for ((acc, isum), sw) in acc.iter_mut().zip(isum).zip(sw) {
                    let scale = _mm512_mul_ps(sx, sw);
                    *acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(*isum), scale, *acc);
                }
            }
        }
        for (mr, acc) in acc.iter().enumerate() {
            for (nr, acc) in acc.iter().enumerate() {
                let mut values = [0.0; PANEL];
                _mm512_storeu_ps(values.as_mut_ptr(), *acc);
                tile.y.store(row + mr, panel + nr, &values);
            }
        }
    }
}

/// The kernel of one layout.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(super) fn tile<const Q4: bool>(tile: &Tile<'_, IntRows<'_>>) {
    walk_tile!(tile, MAX_ROWS, micro::<Q4>, 1 => 1, 2 => 1, 3 => 2, 4 => 2, 5 => 2, 6 => 2, 7 => 2, 8 => 2);
}
