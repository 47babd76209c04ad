//! Float weights on AVX-512: one register holds the 16 outputs of a panel.
//!
//! ```text
//! for k in steps of 2:
//!     w[NR][2] = unpack(load)              f32: 2 loads; f16: 2 converting loads;
//!                                          bf16: 1 load, 1 shift (k), 1 mask (k + 1)
//!     for each of MR rows: acc[row][NR] = fma(broadcast x[k], w[..][0], acc)
//!                          acc[row][NR] = fma(broadcast x[k + 1], w[..][1], acc)
//! ```
//!
//! Registers at MR = 8, NR = 2: 16 accumulators + 4 weights + 1 broadcast of 32. At M = 1 four
//! panels give four chains of multiply-adds, 128 bytes of bf16 per 4 cycles of latency, above the
//! speed of memory; each panel is then a stream of its own, and is prefetched because hardware
//! stops at page ends.
//!
//! Tried and dropped: 12 rows (as a rule they are a power of two apart and fill all ways of one
//! cache set: 62 instead of 95 % of the multiplier at M = 64).
//!
//! Considered and not taken: `vdpbf16ps` (twice the multiply-adds, but it rounds pairs in its own
//! way and flushes subnormals: no other instruction set could return the same bits).

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
const MAX_ROWS: usize = 8;
/// Bytes ahead of the loads that each panel is prefetched.
const PREFETCH: usize = 1024;

/// Bytes of a panel per pair of inputs.
const fn pair_bytes(layout: u8) -> usize {
    if layout == F32 { 128 } else { 64 }
}

/// The weights of 16 outputs for inputs `k` and `k + 1`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn load_pair<const LAYOUT: u8>(w: *const u8) -> [__m512; 2] {
    // SAFETY: the caller vouches for `pair_bytes(LAYOUT)` readable bytes.
    unsafe {
        match LAYOUT {
            F32 => [_mm512_loadu_ps(w.cast()), _mm512_loadu_ps(w.add(64).cast())],
            F16 => {
                let pair = [_mm256_loadu_si256(w.cast()), _mm256_loadu_si256(w.add(32).cast())];
                [_mm512_cvtph_ps(pair[0]), _mm512_cvtph_ps(pair[1])]
            }
            _ => {
                let pair = _mm512_loadu_si512(w.cast());
                let mask = _mm512_set1_epi32(0xFFFF_0000_u32.cast_signed());
                [
                    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pair)),
                    _mm512_castsi512_ps(_mm512_and_si512(pair, mask)),
                ]
            }
        }
    }
}

/// The weights of 16 outputs for the last input of an odd number.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn load_last<const LAYOUT: u8>(w: *const u8) -> __m512 {
    // SAFETY: the caller vouches for 64 (F32, Bf16) or 32 (F16) readable bytes.
    unsafe {
        match LAYOUT {
            F32 => _mm512_loadu_ps(w.cast()),
            F16 => _mm512_cvtph_ps(_mm256_loadu_si256(w.cast())),
            _ => load_pair::<BF16>(w)[0],
        }
    }
}

/// `MR` rows by `NR` panels, from row `row` and panel `panel` of the tile.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn micro<const LAYOUT: u8, const MR: usize, const NR: usize>(
    tile: &Tile<'_, FloatRows<'_>>,
    row: usize,
    panel: usize,
) {
    let mut acc = [[_mm512_setzero_ps(); NR]; MR];
    // SAFETY: the caller vouches that the rows and panels are inside the tile; see its invariants.
    unsafe {
        let w = tile.w.as_ptr().add(panel * tile.panel_bytes);
        let x = tile.x.data.as_ptr().add(row * tile.x.stride);
        let mut pair_idx = 0;
        while pair_idx < tile.k / 2 {
            let at = w.add(pair_idx * pair_bytes(LAYOUT));
            let mut weights = [[_mm512_setzero_ps(); 2]; NR];
            for (nr, weights) in weights.iter_mut().enumerate() {
                let at = at.add(nr * tile.panel_bytes);
                *weights = load_pair::<LAYOUT>(at);
                if MR <= 2 {
                    _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(PREFETCH).cast());
                    if LAYOUT == F32 {
                        _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(PREFETCH + 64).cast());
                    }
                }
            }
            for k in 0..2 {
                for (mr, acc) in acc.iter_mut().enumerate() {
                    let x = _mm512_set1_ps(*x.add(mr * tile.x.stride + pair_idx * 2 + k));
                    for (acc, weights) in acc.iter_mut().zip(&weights) {
                        *acc = _mm512_fmadd_ps(x, weights[k], *acc);
                    }
                }
            }
            pair_idx += 1;
        }
        if tile.k % 2 == 1 {
            for nr in 0..NR {
                let at = w.add(pair_idx * pair_bytes(LAYOUT) + nr * tile.panel_bytes);
                let weights = load_last::<LAYOUT>(at);
                for (mr, acc) in acc.iter_mut().enumerate() {
                    let x = _mm512_set1_ps(*x.add(mr * tile.x.stride + tile.k - 1));
                    acc[nr] = _mm512_fmadd_ps(x, weights, acc[nr]);
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
pub(super) fn tile<const LAYOUT: u8>(tile: &Tile<'_, FloatRows<'_>>) {
    walk_tile!(tile, MAX_ROWS, micro::<LAYOUT>, 1 => 4, 2 => 4, 3 => 4, 4 => 4, 5 => 2, 6 => 2, 7 => 2, 8 => 2);
}
