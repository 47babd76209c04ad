//! The end of a greedy step: the head and the largest logit of each row, in one operation and in
//! two.
//!
//! ```text
//! fused   the weights, read once                              tiles of logits stay with their thread
//! apart   the weights, 4 bytes per logit out, 6 back in       a product, then the argmax of each row
//! ```
//!
//! Operations are `2 · m · n · k` and one comparison per logit; `apart` has one and a half, since
//! its second pass ends in the middle.

use std::hint::black_box;
use std::ops::ControlFlow;

use pelton_kernels::{Activations, Forms, Largest, LogitsOp, MatmulOutput, WeightLayout};

use super::block::{Block, Call, Calls, Cost, Sizes, activations};
use super::matmul::{matrices, multiplier};

/// Layouts of output heads.
const LAYOUTS: [WeightLayout; 3] = [WeightLayout::Q8G32, WeightLayout::Q6K, WeightLayout::Bf16];
/// Most rows; a prompt needs the logits of one row only.
const MOST_ROWS: usize = 64;

/// Both ways with each layout.
pub(super) fn blocks(sizes: &Sizes) -> Vec<Block> {
    let ways = LAYOUTS.iter().flat_map(|layout| [(*layout, true), (*layout, false)]);
    let block = |(layout, is_fused): (WeightLayout, bool)| Block {
        variant: format!("{} {}", layout.name(), if is_fused { "fused" } else { "apart" }),
        shape: format!("[{}, {}]", sizes.vocab, sizes.width),
        multiplier: multiplier(layout),
        calls: calls(layout, is_fused, sizes),
    };
    ways.map(block).collect()
}

fn calls(layout: WeightLayout, is_fused: bool, sizes: &Sizes) -> Box<Calls> {
    let (rows, n_bytes) = (sizes.matmul_rows, sizes.beyond_caches_bytes);
    let (n, k) = (sizes.vocab, sizes.width);
    Box::new(move |cpu, visit| {
        let matrices = matrices(cpu, layout, [n, k], n_bytes);
        let each = matrices[0].n_bytes();
        let mut at = 0;
        for &m in rows.iter().filter(|m| **m <= MOST_ROWS) {
            let mut x = Activations::new(k, Forms::default().read_by(cpu, &matrices[0]));
            cpu.write_rows(&activations(m * k), &mut x);
            let mut y = vec![0.0; if is_fused { 0 } else { m * n }];
            let mut largest: Vec<Largest> = Vec::new();
            largest.resize_with(m, Largest::default);
            let mut run = || {
                let weight = &matrices[at % matrices.len()];
                at += 1;
                if is_fused {
                    let (bias, softcap) = (None, None);
                    let op = LogitsOp { weight, bias, scale: 1.0, softcap, n_sampled: n };
                    cpu.matmul_largest(&op, &x, &mut [], &mut largest);
                    black_box(&mut largest);
                } else {
                    let output = MatmulOutput { data: &mut y, stride: n, offset: 0 };
                    cpu.matmul(weight, &x, output);
                    y.chunks_exact(n).for_each(|row| {
                        black_box(cpu.argmax(row));
                    });
                }
            };
            let n_logits = m * n;
            let cost = if is_fused {
                Cost { n_rows: m, n_bytes: each, n_ops: n_logits * (2 * k + 1) }
            } else {
                let n_ops = n_logits * (2 * k + 1) + n_logits / 2;
                Cost { n_rows: m, n_bytes: each + n_logits * 10, n_ops }
            };
            visit(Call { cost, run: &mut run })?;
        }
        ControlFlow::Continue(())
    })
}
