//! The specification of the product with float weights: boring on purpose.

use half::f16;

use super::{FloatRows, Tile};
use crate::layout::PANEL;

pub(super) fn f32(tile: &Tile<'_, FloatRows<'_>>) {
    floats(tile, |panel, k, lane| {
        bytemuck::pod_read_unaligned(&panel[(k * PANEL + lane) * 4..][..4])
    });
}

pub(super) fn f16(tile: &Tile<'_, FloatRows<'_>>) {
    floats(tile, |panel, k, lane| {
        let at = (k * PANEL + lane) * 2;
        f16::from_le_bytes([panel[at], panel[at + 1]]).to_f32()
    });
}

pub(super) fn bf16(tile: &Tile<'_, FloatRows<'_>>) {
    floats(tile, |panel, k, lane| {
        let at = (k / 2 * PANEL + lane) * 4 + k % 2 * 2;
        f32::from_bits(u32::from(u16::from_le_bytes([panel[at], panel[at + 1]])) << 16)
    });
}

#[inline(always)]
fn floats(tile: &Tile<'_, FloatRows<'_>>, weight: impl Fn(&[u8], usize, usize) -> f32) {
    for row in 0..tile.m {
        let x = &tile.x.data[row * tile.x.stride..][..tile.k];
        for panel_idx in 0..tile.n_panels {
            let panel = &tile.w[panel_idx * tile.panel_bytes..][..tile.panel_bytes];
            let mut acc = [0.0_f32; PANEL];
            for (k, &x) in x.iter().enumerate() {
                for (lane, acc) in acc.iter_mut().enumerate() {
                    *acc = x.mul_add(weight(panel, k, lane), *acc);
                }
            }
            // SAFETY: `row` and `panel_idx` are inside the tile.
            unsafe { tile.y.store(row, panel_idx, &acc) };
        }
    }
}
