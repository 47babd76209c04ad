//! Float weights on AVX2: two registers hold the 16 outputs of a panel.
//!
//! ```text
//! for k in steps of 2, for each of the two, for each of NR panels:
//!     w[2 halves] = unpack(load)
//!     for each of MR rows: acc[row][panel][half] = fma(broadcast x, w[half], acc)
//! ```
//!
//! Registers at MR = 6, NR = 1: 12 accumulators + 2 weights + 1 broadcast of 16. At M = 1 four
//! panels make eight chains of multiply-adds.
//!
//! Considered and not taken (reasoned, not measured): see `avx512_float`.

use std::arch::x86_64::*;

use super::{FloatRows, Tile};
use crate::layout::PANEL;

/// Layout parameter of [`tile`]: `WeightLayout::F32`.
pub(super) const F32: u8 = 0;
/// Layout parameter of [`tile`]: `WeightLayout::F16`.
pub(super) const F16: u8 = 1;
/// Layout parameter of [`tile`]: `WeightLayout::Bf16`.
pub(super) const BF16: u8 = 2;

/// Rows of the tallest register tile.
const MAX_ROWS: usize = 6;
/// Bytes ahead of the loads that each panel is prefetched at M = 1.
const PREFETCH: usize = 1024;

/// Bytes of a panel per pair of inputs.
const fn pair_bytes(layout: u8) -> usize {
    if layout == F32 { 128 } else { 64 }
}

/// The weights of 16 outputs for input `k` (`ODD = false`) or `k + 1` (`ODD = true`) of a pair.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load<const LAYOUT: u8, const ODD: bool>(w: *const u8) -> [__m256; 2] {
    // SAFETY: the caller vouches for the bytes of the pair, or of its first half if not `ODD`.
    unsafe {
        match LAYOUT {
            F32 => {
                let w = w.add(if ODD { 64 } else { 0 }).cast::<f32>();
                [_mm256_loadu_ps(w), _mm256_loadu_ps(w.add(8))]
            }
            F16 => {
                let w = w.add(if ODD { 32 } else { 0 });
                let halves = [_mm_loadu_si128(w.cast()), _mm_loadu_si128(w.add(16).cast())];
                [_mm256_cvtph_ps(halves[0]), _mm256_cvtph_ps(halves[1])]
            }
            _ => {
                let mask = _mm256_set1_epi32(0xFFFF_0000_u32.cast_signed());
                let pairs = [_mm256_loadu_si256(w.cast()), _mm256_loadu_si256(w.add(32).cast())];
                let mut halves = [_mm256_setzero_ps(); 2];
                for (half, pair) in halves.iter_mut().zip(pairs) {
                    *half = _mm256_castsi256_ps(if ODD {
                        _mm256_and_si256(pair, mask)
                    } else {
                        _mm256_slli_epi32::<16>(pair)
                    });
                }
                halves
            }
        }
    }
}

/// `MR` rows by `NR` panels, from row `row` and panel `panel` of the tile.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn micro<const LAYOUT: u8, const MR: usize, const NR: usize>(
    tile: &Tile<'_, FloatRows<'_>>,
    row: usize,
    panel: usize,
) {
    let mut acc = [[[_mm256_setzero_ps(); 2]; NR]; MR];
    // SAFETY: the caller vouches that the rows and panels are inside the tile; see its invariants.
    unsafe {
        let w = tile.w.as_ptr().add(panel * tile.panel_bytes);
        let x = tile.x.data.as_ptr().add(row * tile.x.stride);
        macro_rules! step {
            ($odd:literal, $k:expr, $at:expr) => {
                for nr in 0..NR {
                    let weights = load::<LAYOUT, $odd>($at.add(nr * tile.panel_bytes));
                    for (mr, acc) in acc.iter_mut().enumerate() {
                        let x = _mm256_set1_ps(*x.add(mr * tile.x.stride + $k));
                        for (acc, weights) in acc[nr].iter_mut().zip(weights) {
                            *acc = _mm256_fmadd_ps(x, weights, *acc);
                        }
                    }
                }
            };
        }
        let mut pair_idx = 0;
        while pair_idx < tile.k / 2 {
            let at = w.add(pair_idx * pair_bytes(LAYOUT));
            if MR <= 2 {
                for nr in 0..NR {
                    let ahead = at.wrapping_add(nr * tile.panel_bytes + PREFETCH);
                    _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
                    if LAYOUT == F32 {
                        _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(64).cast());
                    }
                }
            }
            step!(false, pair_idx * 2, at);
            step!(true, pair_idx * 2 + 1, at);
            pair_idx += 1;
        }
        if tile.k % 2 == 1 {
            let at = w.add(pair_idx * pair_bytes(LAYOUT));
            step!(false, tile.k - 1, at);
        }
        for (mr, acc) in acc.iter().enumerate() {
            for (nr, acc) in acc.iter().enumerate() {
                let mut values = [0.0; PANEL];
                _mm256_storeu_ps(values.as_mut_ptr(), acc[0]);
                _mm256_storeu_ps(values.as_mut_ptr().add(8), acc[1]);
                tile.y.store(row + mr, panel + nr, &values);
            }
        }
    }
}

/// The kernel of one layout.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn tile<const LAYOUT: u8>(tile: &Tile<'_, FloatRows<'_>>) {
    walk_tile!(tile, MAX_ROWS, micro::<LAYOUT>, 1 => 4, 2 => 2, 3 => 1, 4 => 1, 5 => 1, 6 => 1);
}
