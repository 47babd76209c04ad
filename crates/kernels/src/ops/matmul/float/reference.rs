//! The specification of the product with float weights, in plain arithmetic.
//!
//! One compiled function serves all layouts: what tells them apart is data ([`Spec`]).

use super::{FloatRows, HALF, Tile};
use crate::layout::PANEL;
use crate::layout::float::{FloatLayout, row_scale};
use crate::ops::matmul::row_chunks;

/// Rows that share each weight that is read.
const ROWS: usize = 8;

/// A layout as data.
struct Spec {
    /// Weight `k` of output `lane` of a panel.
    read: fn(&[u8], usize, usize) -> f32,
    in_halves: bool,
    /// Scale of output `lane` of a panel, where there is one.
    scale: Option<fn(&[u8], usize) -> f32>,
}

/// The kernel of one layout.
pub(in crate::ops::matmul) fn kernel<L: FloatLayout>(tile: &Tile<'_, FloatRows<'_>>) {
    let scale = L::ROW_SCALE.then_some(row_scale::<L> as fn(&[u8], usize) -> f32);
    multiply(&Spec { read: L::read, in_halves: L::IN_HALVES, scale }, tile);
}

fn multiply(spec: &Spec, tile: &Tile<'_, FloatRows<'_>>) {
    for panel_idx in 0..tile.n_panels {
        let panel = &tile.w[panel_idx * tile.panel_bytes..][..tile.panel_bytes];
        for rows in row_chunks(tile.m, ROWS) {
            let x = &tile.x.data[rows.start * tile.x.stride..];
            let mut out = [[0.0; PANEL]; ROWS];
            for lane in 0..PANEL {
                let sums = outputs(spec, panel, lane, tile, x, rows.len());
                for (out, sum) in out.iter_mut().zip(sums) {
                    out[lane] = spec.scale.map_or(sum, |scale| sum * scale(panel, lane));
                }
            }
            for (row, out) in rows.zip(&out) {
                // SAFETY: `row` and `panel_idx` are inside the tile.
                unsafe { tile.y.store(row, panel_idx, out) };
            }
        }
    }
}

/// One output of `m` rows, the first of which `x` begins with, before the scale of the output.
fn outputs(
    spec: &Spec,
    panel: &[u8],
    lane: usize,
    tile: &Tile<'_, FloatRows<'_>>,
    x: &[f32],
    m: usize,
) -> [f32; ROWS] {
    let mut acc = [0.0_f32; ROWS];
    let add = |acc: &mut [f32; ROWS], k: usize| {
        let weight = (spec.read)(panel, lane, k);
        for (row, acc) in acc[..m].iter_mut().enumerate() {
            *acc = x[row * tile.x.stride + k].mul_add(weight, *acc);
        }
    };
    if !spec.in_halves {
        (0..tile.k).for_each(|k| add(&mut acc, k));
        return acc;
    }
    for block in (0..tile.k).step_by(2 * HALF) {
        let halves = [block, block + HALF].map(|start| {
            let mut sum = [0.0; ROWS];
            // 1, 0, 3, 2, ..: the second input of a pair comes first.
            let inputs = (start..start + HALF).map(|step| step ^ 1).filter(|k| *k < tile.k);
            inputs.for_each(|k| add(&mut sum, k));
            sum
        });
        for (row, acc) in acc.iter_mut().enumerate() {
            *acc += halves[0][row] + halves[1][row];
        }
    }
    acc
}
