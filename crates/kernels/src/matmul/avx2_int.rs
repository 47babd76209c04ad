//! Quantized weights on AVX2: `maddubs` multiplies 4 inputs of 8 outputs, in 16 bits.
//!
//! ```text
//! q8  for each quad: |w| as unsigned, x with the sign of w:  |w| * (x * sign w) = w * x
//!         t16  = maddubs(|w|, sign(x, w))          at most 2 * 128 * 127 = 32512: no saturation
//!         isum = isum + madd(t16, 1)
//! q4  for each quad: nibble (w + 8) as unsigned
//!         t16 += maddubs(nibble, x)                at most 8 * 2 * 15 * 127 = 30480 after 8 quads
//!     isum = madd(t16, 1) - 8 * sum(x)
//! acc = fma(isum as f32, sx * sw, acc)             once per group of 32
//! ```
//!
//! A weight of -128 (only hostile or foreign files have it) is right as well: `abs_epi8` leaves
//! 0x80, which `maddubs` reads as 128, and `sign_epi8` negates x, which is never -128.
//!
//! Considered and not taken (reasoned, not measured): `w ^ 0x80` as the unsigned side, as on VNNI
//! (`2 * 255 * 127` saturates 16 bits); widening both sides to 16 bits (as many operations, twice
//! the registers).

use std::arch::x86_64::*;

use super::{Tile, row_chunks};
use crate::layout::{PANEL, Q4_BLOCK, Q8_BLOCK, SCALE_BYTES};
use crate::quantize::{GROUP, IntRows};

/// Rows of the tallest register tile.
const MAX_ROWS: usize = 4;
/// Bytes ahead of the loads that a panel is prefetched at M = 1.
const PREFETCH: usize = 2048;

/// `MR` rows by one panel, from row `row` of the tile.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn micro<const Q4: bool, const MR: usize>(
    tile: &Tile<'_, IntRows<'_>>,
    row: usize,
    panel: usize,
) {
    let block_bytes = if Q4 { Q4_BLOCK } else { Q8_BLOCK };
    let n_groups = tile.k / GROUP;
    let ones = _mm256_set1_epi16(1);
    let nibble = _mm256_set1_epi8(15);
    let mut acc = [[_mm256_setzero_ps(); 2]; MR];
    // SAFETY: the caller vouches that the rows and the panel are inside the tile; see its
    // invariants.
    unsafe {
        let x = tile.x.values.as_ptr().add(row * tile.x.stride);
        let scales = tile.x.scales.as_ptr().add(row * n_groups);
        let sums = tile.x.sums.as_ptr().add(row * n_groups);
        for group in 0..n_groups {
            let w = tile.w.as_ptr().add(panel * tile.panel_bytes + group * block_bytes);
            if MR <= 2 {
                for line in 0..block_bytes.div_ceil(64) {
                    _mm_prefetch::<_MM_HINT_T0>(w.wrapping_add(PREFETCH + line * 64).cast());
                }
            }
            let x = x.add(group * GROUP);
            // 16-bit sums for q4, 32-bit sums for q8.
            let mut isum = [[_mm256_setzero_si256(); 2]; MR];
            for quad in 0..GROUP / 4 {
                let at = w.add(SCALE_BYTES + if Q4 { quad % 4 } else { quad } * 64);
                let mut raw =
                    [_mm256_loadu_si256(at.cast()), _mm256_loadu_si256(at.add(32).cast())];
                if Q4 {
                    for raw in &mut raw {
                        let shifted = if quad < 4 { *raw } else { _mm256_srli_epi16::<4>(*raw) };
                        *raw = _mm256_and_si256(shifted, nibble);
                    }
                }
                let magnitude = [_mm256_abs_epi8(raw[0]), _mm256_abs_epi8(raw[1])];
                for (mr, isum) in isum.iter_mut().enumerate() {
                    let x = x.add(mr * tile.x.stride + quad * 4).cast::<i32>().read_unaligned();
                    let x = _mm256_set1_epi32(x);
                    for half in 0..2 {
                        if Q4 {
                            let products = _mm256_maddubs_epi16(raw[half], x);
                            isum[half] = _mm256_add_epi16(isum[half], products);
                        } else {
                            let signed = _mm256_sign_epi8(x, raw[half]);
                            let products = _mm256_maddubs_epi16(magnitude[half], signed);
                            let products = _mm256_madd_epi16(products, ones);
                            isum[half] = _mm256_add_epi32(isum[half], products);
                        }
                    }
                }
            }
            for (mr, (acc, isum)) in acc.iter_mut().zip(&isum).enumerate() {
                let sx = _mm256_set1_ps(*scales.add(mr * n_groups + group));
                for (half, acc) in acc.iter_mut().enumerate() {
                    let mut isum = isum[half];
                    if Q4 {
                        let sum = *sums.add(mr * n_groups + group);
                        isum = _mm256_madd_epi16(isum, ones);
                        isum = _mm256_add_epi32(isum, _mm256_set1_epi32(-8 * sum));
                    }
                    let sw = _mm256_cvtph_ps(_mm_loadu_si128(w.add(half * 16).cast()));
                    let scale = _mm256_mul_ps(sx, sw);
                    *acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(isum), scale, *acc);
                }
            }
        }
        for (mr, acc) in acc.iter().enumerate() {
            let mut values = [0.0; PANEL];
            _mm256_storeu_ps(values.as_mut_ptr(), acc[0]);
            _mm256_storeu_ps(values.as_mut_ptr().add(8), acc[1]);
            tile.y.store(row + mr, panel, &values);
        }
    }
}

/// The kernel of one layout.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn tile<const Q4: bool>(tile: &Tile<'_, IntRows<'_>>) {
    for rows in row_chunks(tile.m, MAX_ROWS) {
        let row = rows.start;
        for panel in 0..tile.n_panels {
            // SAFETY: the rows of the chunk and the panel are inside the tile.
            unsafe {
                match rows.len() {
                    1 => micro::<Q4, 1>(tile, row, panel),
                    2 => micro::<Q4, 2>(tile, row, panel),
                    3 => micro::<Q4, 3>(tile, row, panel),
                    _ => micro::<Q4, 4>(tile, row, panel),
                }
            }
        }
    }
}
