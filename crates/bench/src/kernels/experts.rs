//! Products of a mixture of experts: each row of a step by the matrices of its own experts, in one
//! call.
//!
//! ```text
//! M rows, top_k experts of each   ── sorted by expert ──►   groups, each [rows of it, k] x [n, k]
//! ```
//!
//! Bytes are those of the experts that have rows, read once; operations `2 · m · top_k · n · k`.
//! Experts are chosen by a fixed sequence of random numbers, so at M rows about
//! `E · (1 - (1 - top_k / E)^M)` of E have any, and each call takes others than the one before.

use std::ops::ControlFlow;

use pelton_kernels::{Activations, Forms, MatmulGroup, MatmulGroups, WeightLayout};

use super::block::{Block, Call, Calls, Cost, Sizes, activations};
use super::matmul::{matrices, multiplier};

/// Layouts in which mixtures of experts are published.
const LAYOUTS: [WeightLayout; 5] = [
    WeightLayout::Q8G32,
    WeightLayout::Q4G32,
    WeightLayout::Q4K,
    WeightLayout::Mxfp4,
    WeightLayout::Bf16,
];

/// The sizes of the experts of a layer.
#[derive(Clone, Copy)]
pub(super) struct Experts {
    /// Experts that there are.
    pub(super) n_experts: usize,
    /// Experts of each row.
    pub(super) top_k: usize,
    /// The first matrix of an expert: `[n, k]`.
    pub(super) matrix: [usize; 2],
}

/// The first products of the experts, in each layout.
pub(super) fn blocks(sizes: &Sizes) -> Vec<Block> {
    let Experts { n_experts, top_k, matrix: [n, k] } = sizes.experts;
    let block = |layout: &WeightLayout| Block {
        variant: layout.name().to_owned(),
        shape: format!("{top_k} of {n_experts} x [{n}, {k}]"),
        multiplier: multiplier(*layout),
        calls: calls(*layout, sizes),
    };
    LAYOUTS.iter().map(block).collect()
}

fn calls(layout: WeightLayout, sizes: &Sizes) -> Box<Calls> {
    let (rows, n_bytes) = (sizes.matmul_rows, sizes.beyond_caches_bytes);
    let Experts { n_experts, top_k, matrix: [n, k] } = sizes.experts;
    Box::new(move |cpu, visit| {
        let mut experts = matrices(cpu, layout, [n, k], n_bytes);
        let each = experts[0].n_bytes();
        if experts.len() < n_experts {
            experts.extend(matrices(cpu, layout, [n, k], each * (n_experts - experts.len())));
        }
        let mut first = 0;
        for &m in rows {
            let chosen = chosen(m, top_k, n_experts);
            let mut x = Activations::new(k, Forms::default().read_by(cpu, &experts[0]));
            cpu.write_rows(&activations(m * top_k * k), &mut x);
            let mut y = vec![0.0; m * top_k * n];
            let mut groups = MatmulGroups::default();
            let mut run = || {
                groups.clear(chosen.len());
                let mut row = 0;
                for &(_, n_rows) in &chosen {
                    groups.push(MatmulGroup { x_row: row, y_row: row, n_rows, offset: 0 });
                    row += n_rows;
                }
                let matrix = |group: usize| &experts[(first + chosen[group].0) % experts.len()];
                cpu.matmul_groups(&mut groups, &matrix, &x, &mut y, n);
                first += n_experts / 2 + 1;
            };
            let n_ops = 2 * m * top_k * n * k;
            let cost = Cost { n_rows: m, n_bytes: chosen.len() * each, n_ops };
            visit(Call { cost, run: &mut run })?;
        }
        ControlFlow::Continue(())
    })
}

/// The experts that have any of `m` rows, ascending, each with the number of its rows. A row has
/// `top_k` different ones.
fn chosen(m: usize, top_k: usize, n_experts: usize) -> Vec<(usize, usize)> {
    let mut n_rows = vec![0; n_experts];
    let mut state = 1_u64;
    for _ in 0..m {
        let mut of_row = Vec::with_capacity(top_k);
        while of_row.len() < top_k {
            // Knuth's multiplier; the high bits are the random ones.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let expert = (state >> 33) as usize % n_experts;
            if !of_row.contains(&expert) {
                of_row.push(expert);
                n_rows[expert] += 1;
            }
        }
    }
    n_rows.into_iter().enumerate().filter(|(_, n_rows)| *n_rows > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_has_its_number_of_experts() {
        for m in [1, 5, 64] {
            let chosen = chosen(m, 8, 128);
            assert_eq!(chosen.iter().map(|(_, n_rows)| n_rows).sum::<usize>(), 8 * m);
            assert!(chosen.iter().all(|(_, n_rows)| (1..=m).contains(n_rows)), "{m} rows");
            assert!(chosen.windows(2).all(|pair| pair[0].0 < pair[1].0), "ascending");
        }
        assert_eq!(chosen(1, 8, 128).len(), 8);
        assert_eq!(chosen(512, 8, 128).len(), 128);
    }
}
