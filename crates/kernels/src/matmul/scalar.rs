//! The specification of the matrix product: boring on purpose.

use half::f16;

use super::{FloatRows, Tile};
use crate::layout::{PANEL, Q4_BLOCK, Q8_BLOCK, q4_at, q8_at};
use crate::quantize::{GROUP, IntRows};

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

pub(super) fn q8(tile: &Tile<'_, IntRows<'_>>) {
    ints::<Q8_BLOCK>(tile, q8_at);
}

pub(super) fn q4(tile: &Tile<'_, IntRows<'_>>) {
    ints::<Q4_BLOCK>(tile, q4_at);
}

#[inline(always)]
fn ints<const BLOCK: usize>(
    tile: &Tile<'_, IntRows<'_>>,
    weight: impl Fn(&[u8], usize, usize) -> i8,
) {
    for row in 0..tile.m {
        let x = tile.x.starting_at(row);
        for panel_idx in 0..tile.n_panels {
            let panel = &tile.w[panel_idx * tile.panel_bytes..][..tile.panel_bytes];
            let groups = panel.as_chunks::<BLOCK>().0.iter().zip(x.values.as_chunks::<GROUP>().0);
            let mut acc = [0.0_f32; PANEL];
            for ((block, values), &sx) in groups.zip(x.scales) {
                for (lane, acc) in acc.iter_mut().enumerate() {
                    let products = (values.iter().enumerate())
                        .map(|(k, &x)| i32::from(x) * i32::from(weight(block, lane, k)));
                    let isum: i32 = products.sum();
                    let sw = f16::from_le_bytes([block[lane * 2], block[lane * 2 + 1]]).to_f32();
                    *acc = (isum as f32).mul_add(sx * sw, *acc);
                }
            }
            // SAFETY: `row` and `panel_idx` are inside the tile.
            unsafe { tile.y.store(row, panel_idx, &acc) };
        }
    }
}
