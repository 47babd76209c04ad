//! Products with every weight layout.
//!
//! Bytes are those of the weights, read once; activations and results are in cache. Operations are
//! `2 · m · n · k`. Activations are quantized or rounded for the layout beforehand, as a model does
//! once for several products.

use pelton_kernels::{Activations, Cpu, Forms, MatmulOutput, PackedMatrix, WeightLayout};

use super::block::{Block, Call, Calls, Cost, Multiplier, Sizes, activations};

/// Each layout with each matrix.
pub(super) fn blocks(sizes: &Sizes) -> Vec<Block> {
    let mut blocks = Vec::new();
    for &layout in WeightLayout::ALL {
        for &[n, k] in sizes.matrices {
            blocks.push(Block {
                variant: layout.name().to_owned(),
                shape: format!("[{n}, {k}]"),
                multiplier: multiplier(layout),
                calls: calls(layout, [n, k], sizes),
            });
        }
    }
    blocks
}

/// The arithmetic of a layout's kernels.
pub(super) fn multiplier(layout: WeightLayout) -> Multiplier {
    match layout {
        layout if layout.needs_quantized_input() => Multiplier::Int8,
        WeightLayout::Bf16 => Multiplier::Bf16,
        _ => Multiplier::F32,
    }
}

pub(super) fn calls(layout: WeightLayout, [n, k]: [usize; 2], sizes: &Sizes) -> Box<Calls> {
    let (rows, n_bytes) = (sizes.matmul_rows, sizes.beyond_caches_bytes);
    Box::new(move |cpu, visit| {
        let matrices = matrices(cpu, layout, [n, k], n_bytes);
        let each = matrices[0].n_bytes();
        let mut at = 0;
        for &m in rows {
            let mut x = Activations::new(k, Forms::default().read_by(cpu, &matrices[0]));
            cpu.write_rows(&activations(m * k), &mut x);
            let mut y = vec![0.0; m * n];
            let mut run = || {
                let w = &matrices[at % matrices.len()];
                at += 1;
                let output = MatmulOutput { data: &mut y, stride: n, offset: 0 };
                cpu.matmul(w, &x, output);
            };
            let cost = Cost { n_rows: m, n_bytes: each, n_ops: 2 * m * n * k };
            visit(Call { cost, run: &mut run })?;
        }
        std::ops::ControlFlow::Continue(())
    })
}

/// Matrices `[n, k]` of at least `n_bytes` together, and at least one.
pub(super) fn matrices(
    cpu: &Cpu,
    layout: WeightLayout,
    [n, k]: [usize; 2],
    n_bytes: usize,
) -> Vec<PackedMatrix> {
    let row = weight_row(layout.row_bytes(k));
    let pack = || PackedMatrix::pack(cpu, layout, n, k, &|_| &row);
    let first = pack();
    let n_more = n_bytes.div_ceil(first.n_bytes()).saturating_sub(1);
    [first].into_iter().chain((0..n_more).map(|_| pack())).collect()
}

/// Bytes that suit every layout: read as a weight or as a scale of 8, 16 or 32 bits, none is
/// subnormal, infinite or NaN, which some processors compute more slowly.
fn weight_row(n_bytes: usize) -> Vec<u8> {
    (0..n_bytes).map(|i| 0x20 + (i * 7 % 27) as u8).collect()
}
