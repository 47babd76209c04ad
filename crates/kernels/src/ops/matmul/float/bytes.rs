//! Weights of one byte on AVX-512 VBMI: 64 at a time become floats by tables.
//!
//! The products, their order and so their bits are the parent's. The next four inputs of a panel
//! are looked up and multiplied with all rows before the next panel is, so that four weights need
//! registers; each activation is the operand of a multiply-add in memory.
//!
//! Two Zen 4 cores, `[2048, 2048]` of e4m3 from memory, in us by way of half precision and by
//! tables: one row 174 and 116, 5 rows 347 and 208, 8 rows 475 and 314; many rows by blocks
//! (`blocked.rs`) and by tables: 32 rows 1480 and 1190, 512 rows 22030 and 19000 (96 % of the
//! peak).
//!
//! Tried and dropped: 8 rows by 2 panels (756: tables and accumulators are more than the
//! registers); blocks that are widened by tables (32 rows 1440); no prefetch to the second level of
//! cache from 3 rows on (5 rows 279), and to it alone at 1 and 2 rows (173 in place of 131 at two);
//! the last inputs by tables, too (two rows 156, because the compiler arranges the loop before them
//! otherwise).

use std::arch::x86_64::*;

use super::{FloatRows, PREFETCH, PREFETCH_FAR, Tile};
use crate::layout::PANEL;
use crate::layout::float::FloatLayout;
use crate::layout::float::fp8::HEAD;
use crate::simd::byte_floats::{GROUP, Lookup};
use crate::simd::bytes::{Block, Bytes as _};
use crate::simd::{Avx512, Simd as _};

/// `MR` rows by `NR` panels, from row `row` and panel `panel` of the tile.
///
/// # Safety
///
/// The rows and panels are inside the tile; see its invariants. This CPU has the features below.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi")]
unsafe fn rows<L: FloatLayout, const MR: usize, const NR: usize>(
    lookup: Lookup,
    tile: &Tile<'_, FloatRows<'_>>,
    row: usize,
    panel: usize,
) {
    let mut acc = [[_mm512_setzero_ps(); NR]; MR];
    // SAFETY: the caller vouches that the rows and panels are inside the tile, and for the
    // features.
    unsafe {
        let s = Avx512::assume();
        let w = tile.w.as_ptr().add(panel * tile.panel_bytes);
        let x = tile.x.data.as_ptr().add(row * tile.x.stride);
        for k in (0..tile.k / GROUP * GROUP).step_by(GROUP) {
            for nr in 0..NR {
                let weights = Block::new(w.add(nr * tile.panel_bytes));
                let at = HEAD + k * PANEL;
                if MR <= 4 {
                    weights.prefetch(at + PREFETCH);
                } else if row == 0 {
                    weights.prefetch_far(s, at + PREFETCH_FAR);
                }
                let weights = lookup.floats(weights.at(at));
                for (i, weights) in weights.into_iter().enumerate() {
                    for (mr, acc) in acc.iter_mut().enumerate() {
                        let x = _mm512_set1_ps(*x.add(mr * tile.x.stride + k + i));
                        acc[nr] = _mm512_fmadd_ps(x, weights, acc[nr]);
                    }
                }
            }
        }
        for nr in 0..NR {
            let weights = Block::new(w.add(nr * tile.panel_bytes));
            for k in tile.k / GROUP * GROUP..tile.k {
                let is_alone = k + 1 == tile.k && k.is_multiple_of(2);
                let weights = match is_alone {
                    true => L::last(s, weights, k / 2),
                    false => L::pair(s, weights, k / 2)[k % 2],
                };
                for (mr, acc) in acc.iter_mut().enumerate() {
                    let x = s.splat(*x.add(mr * tile.x.stride + k));
                    acc[nr] = s.fma(x, weights, acc[nr]);
                }
            }
            let scales = s.floats(weights.at(0));
            for (mr, acc) in acc.iter().enumerate() {
                let mut values = [0.0; PANEL];
                s.store(s.mul(acc[nr], scales), &mut values);
                tile.y.store(row + mr, panel + nr, &values);
            }
        }
    }
}

/// The kernel.
///
/// # Safety
///
/// This CPU has the features below, and weights are bytes.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi")]
pub(super) unsafe fn tile<L: FloatLayout>(tile: &Tile<'_, FloatRows<'_>>) {
    let lookup = Lookup::new(L::byte_table());
    walk_tile!(
        tile, (lookup), rows [L],
        tall 8: [5 => 1, 6 => 1, 7 => 1, 8 => 1], short 4: [1 => 4, 2 => 4, 3 => 4, 4 => 2]
    );
}
