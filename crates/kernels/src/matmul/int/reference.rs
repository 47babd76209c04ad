//! The specification of the quantized product: boring on purpose.

use crate::layout::PANEL;
use crate::layout::int::{HALF, IntLayout, split_panel};
use crate::matmul::Tile;
use crate::quantize::{GROUP, IntRows};

/// The kernel of one layout, in plain arithmetic.
pub(in crate::matmul) fn kernel<L: IntLayout>(tile: &Tile<'_, IntRows<'_>>) {
    for row in 0..tile.m {
        let x = tile.x.starting_at(row);
        for panel_idx in 0..tile.n_panels {
            let panel = &tile.w[panel_idx * tile.panel_bytes..][..tile.panel_bytes];
            let mut out = [0.0_f32; PANEL];
            for (lane, out) in out.iter_mut().enumerate() {
                let (row_scale, blocks) = split_panel::<L>(panel, lane);
                let acc = output::<L>(blocks, lane, x);
                *out = match (L::ROW_SCALE, L::ROW_DIVIDES) {
                    (false, _) => acc,
                    (true, false) => acc * row_scale,
                    (true, true) => acc / row_scale,
                };
            }
            // SAFETY: `row` and `panel_idx` are inside the tile.
            unsafe { tile.y.store(row, panel_idx, &out) };
        }
    }
}

/// One output of one row, before the scale of the output.
fn output<L: IntLayout>(blocks: &[u8], lane: usize, x: IntRows<'_>) -> f32 {
    let groups_per_block = L::LEN / GROUP;
    let mut acc = 0.0_f32;
    for (group_idx, values) in x.values.as_chunks::<GROUP>().0[..x.n_groups].iter().enumerate() {
        let block = &blocks[group_idx / groups_per_block * L::BLOCK_BYTES..][..L::BLOCK_BYTES];
        let group = L::read(block, lane, group_idx % groups_per_block);
        let sx = x.scales[group_idx];
        let sums = x.sums[group_idx];
        let products: [i32; GROUP] =
            std::array::from_fn(|k| i32::from(values[k]) * i32::from(group.q[k]));
        let dots = [products[..HALF].iter().sum(), products[HALF..].iter().sum()];
        let step = |acc: f32, half: usize, dot: i32, sum: i32| {
            let acc = (dot as f32).mul_add(sx * group.scale[half], acc);
            if L::BIAS { (sx * sum as f32).mul_add(group.bias[half], acc) } else { acc }
        };
        acc = if L::SPLIT {
            let acc = step(acc, 0, dots[0], sums[0]);
            step(acc, 1, dots[1], sums[1])
        } else {
            step(acc, 0, dots[0] + dots[1], sums[0] + sums[1])
        };
    }
    acc
}
