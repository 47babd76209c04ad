//! The specification of the quantized product, in plain arithmetic.
//!
//! One compiled function serves all layouts: what tells them apart is data ([`Spec`]).

use crate::layout::int::{Group, HALF, IntLayout, split_panel};
use crate::layout::{GROUP, PANEL};
use crate::ops::matmul::{Tile, row_chunks};
use crate::ops::quantize::IntRows;

/// Rows that share each decoded group of weights.
const ROWS: usize = 8;

/// A layout as data.
struct Spec {
    groups_per_block: usize,
    block_bytes: usize,
    has_halves: bool,
    has_bias: bool,
    /// Scale of output `lane` of a panel, and the blocks of the panel.
    split: fn(&[u8], usize) -> (f32, &[u8]),
    /// Group `group` of output `lane` of a block.
    read: fn(&[u8], usize, usize) -> Group,
    /// How the scale of an output enters its sum.
    finish: fn(f32, f32) -> f32,
}

/// The kernel of one layout.
pub(in crate::ops::matmul) fn kernel<L: IntLayout>(tile: &Tile<'_, IntRows<'_>>) {
    let spec = Spec {
        groups_per_block: L::LEN / GROUP,
        block_bytes: L::BLOCK_BYTES,
        has_halves: L::SPLIT,
        has_bias: L::BIAS,
        split: split_panel::<L>,
        read: L::read,
        finish: match (L::ROW_SCALE, L::ROW_DIVIDES) {
            (false, _) => |sum, _| sum,
            (true, false) => |sum, scale| sum * scale,
            (true, true) => |sum, scale| sum / scale,
        },
    };
    multiply(&spec, tile);
}

fn multiply(spec: &Spec, tile: &Tile<'_, IntRows<'_>>) {
    for panel_idx in 0..tile.n_panels {
        let panel = &tile.w[panel_idx * tile.panel_bytes..][..tile.panel_bytes];
        for rows in row_chunks(tile.m, ROWS) {
            let x = tile.x.starting_at(rows.start);
            let mut out = [[0.0; PANEL]; ROWS];
            for lane in 0..PANEL {
                let (scale, blocks) = (spec.split)(panel, lane);
                let sums = outputs(spec, blocks, lane, x, rows.len());
                for (out, sum) in out.iter_mut().zip(sums) {
                    out[lane] = (spec.finish)(sum, scale);
                }
            }
            for (row, out) in rows.zip(&out) {
                // SAFETY: `row` and `panel_idx` are inside the tile.
                unsafe { tile.y.store(row, panel_idx, out) };
            }
        }
    }
}

/// One output of `m` rows, before the scale of the output.
fn outputs(spec: &Spec, blocks: &[u8], lane: usize, x: IntRows<'_>, m: usize) -> [f32; ROWS] {
    let mut acc = [0.0; ROWS];
    let n_groups = blocks.len() / spec.block_bytes * spec.groups_per_block;
    for (scale_idx, first) in (0..n_groups).step_by(x.group / GROUP).enumerate() {
        let groups = first..n_groups.min(first + x.group / GROUP);
        let read = |group: usize| {
            let block = &blocks[group / spec.groups_per_block * spec.block_bytes..];
            (spec.read)(&block[..spec.block_bytes], lane, group % spec.groups_per_block)
        };
        let mut dots = [[0; 2]; ROWS];
        for idx in groups.clone() {
            let group = read(idx);
            for (row, [first, last]) in dots[..m].iter_mut().enumerate() {
                let values = &x.values[row * x.stride + idx * GROUP..][..GROUP];
                *first += dot(&values[..HALF], &group.q[..HALF]);
                *last += dot(&values[HALF..], &group.q[HALF..]);
            }
        }
        let group = read(first);
        for (row, acc) in acc[..m].iter_mut().enumerate() {
            let at = row * x.n_groups + scale_idx;
            *acc = add_group(spec, *acc, &group, dots[row], x.scales[at], x.sums[at]);
        }
    }
    acc
}

fn dot(x: &[i8], q: &[i8]) -> i32 {
    x.iter().zip(q).map(|(x, q)| i32::from(*x) * i32::from(*q)).sum()
}

/// The sum `acc` of an output and what the inputs of a group add to it, whose halves have the given
/// integer sums.
fn add_group(spec: &Spec, acc: f32, group: &Group, dots: [i32; 2], sx: f32, sums: [i32; 2]) -> f32 {
    let step = |acc: f32, half: usize, dot: i32, sum: i32| {
        let acc = (dot as f32).mul_add(sx * group.scale[half], acc);
        if spec.has_bias { (sx * sum as f32).mul_add(group.bias[half], acc) } else { acc }
    };
    if spec.has_halves {
        let acc = step(acc, 0, dots[0], sums[0]);
        step(acc, 1, dots[1], sums[1])
    } else {
        step(acc, 0, dots[0] + dots[1], sums[0] + sums[1])
    }
}
