//! The specification of the product with float weights: boring on purpose.

use super::{FloatRows, Tile};
use crate::layout::PANEL;
use crate::layout::float::{FloatLayout, row_scale};

/// The kernel of one layout, in plain arithmetic.
pub(in crate::matmul) fn kernel<L: FloatLayout>(tile: &Tile<'_, FloatRows<'_>>) {
    for row in 0..tile.m {
        let x = &tile.x.data[row * tile.x.stride..][..tile.k];
        for panel_idx in 0..tile.n_panels {
            let panel = &tile.w[panel_idx * tile.panel_bytes..][..tile.panel_bytes];
            let mut out = [0.0_f32; PANEL];
            for (lane, out) in out.iter_mut().enumerate() {
                let step = |acc: f32, k: usize| match x.get(k) {
                    Some(&x) => x.mul_add(L::read(panel, lane, k), acc),
                    // The zero that pads a pair.
                    None => 0.0_f32.mul_add(0.0, acc),
                };
                let acc = if L::SECOND_FIRST {
                    let pairs = 0..tile.k.div_ceil(2);
                    pairs.fold(0.0, |acc, pair| step(step(acc, 2 * pair + 1), 2 * pair))
                } else {
                    (0..tile.k).fold(0.0, step)
                };
                *out = if L::ROW_SCALE { acc * row_scale::<L>(panel, lane) } else { acc };
            }
            // SAFETY: `row` and `panel_idx` are inside the tile.
            unsafe { tile.y.store(row, panel_idx, &out) };
        }
    }
}
