//! Against the rows themselves: product, bias, factor and cap one after the other, and a naive look
//! at what came of it.

use super::super::MatmulOutput;
use super::super::tests::{activations, input, pack, scalar, source};
use super::*;
use crate::layout::WeightLayout;
use crate::testing::{Random, all_cpus, bits, hostile_floats};

/// Index that the sampler takes, or `None` where it finds no finite number.
fn naive(row: &[f32]) -> Option<usize> {
    row.iter().find(|logit| logit.is_finite())?;
    let tame = |logit: f32| if logit.is_nan() { f32::NEG_INFINITY } else { logit.min(f32::MAX) };
    let mut best = 0;
    for (i, logit) in row.iter().enumerate() {
        if tame(*logit) > tame(row[best]) {
            best = i;
        }
    }
    Some(best)
}

/// The rows of logits, as the operations give them one by one.
fn logits(cpu: &Cpu, op: &LogitsOp<'_>, x: &Activations) -> Vec<f32> {
    let n = op.weight.n();
    let mut y = vec![0.0; x.n_rows() * n];
    cpu.matmul(op.weight, x, MatmulOutput { data: &mut y, stride: n, offset: 0 });
    if let Some(bias) = op.bias {
        cpu.add_bias(&mut y, bias);
    }
    cpu.scale(&mut y, op.scale);
    if let Some(cap) = op.softcap {
        y.iter_mut().for_each(|y| *y = cap * (*y / cap).tanh());
    }
    y
}

/// Compares with `expected`, the scalar rows: with all of them whole, none and a part.
fn check(cpu: &Cpu, op: &LogitsOp<'_>, x: &Activations, expected: &[f32], what: &str) {
    let (m, n) = (x.n_rows(), op.weight.n());
    let n_sampled = op.n_sampled.min(n);
    for n_whole in [0, 1, m / 2, m] {
        let n_whole = n_whole.min(m);
        let mut whole = vec![12345.0; n_whole * n];
        let mut largest: Vec<Largest> = Vec::new();
        largest.resize_with(m - n_whole, Largest::default);
        // Values from before the call are forgotten.
        largest.iter().for_each(|largest| largest.look(cpu, &[f32::MAX], 0));
        cpu.matmul_largest(op, x, &mut whole, &mut largest);
        let what = || format!("{what}, {} of {m} rows whole, {}", n_whole, cpu.kernels.name);
        assert!(bits(&whole) == bits(&expected[..n_whole * n]), "{}", what());
        for (row, largest) in (n_whole..m).zip(&largest) {
            let expected = &expected[row * n..][..n_sampled];
            assert_eq!(largest.index(), naive(expected), "row {row}, {}", what());
        }
    }
}

#[test]
fn every_layout_at_every_number_of_rows_tells_what_the_row_has() {
    let cpus = all_cpus();
    let mut random = Random::new(40);
    for &layout in WeightLayout::ALL {
        for (n, blocks) in [(1, 2), (33, 1), (300, 1)] {
            let k = match layout.block_len() {
                1 => 32 * blocks + n % 4,
                len => blocks * len,
            };
            let w = pack(&scalar(), layout, n, k, false);
            let bias = random.normals(n);
            let x = activations(25, k);
            let plain =
                LogitsOp { weight: &w, bias: None, scale: 1.0, softcap: None, n_sampled: n };
            for (m, op) in [
                (0, plain),
                (1, plain),
                (2, LogitsOp { bias: Some(&bias), n_sampled: n / 2, ..plain }),
                (5, LogitsOp { scale: 0.3, softcap: Some(2.0), n_sampled: usize::MAX, ..plain }),
                (25, LogitsOp { bias: Some(&bias), scale: -0.5, n_sampled: n - n / 3, ..plain }),
            ] {
                let rows = input(&scalar(), &w, &x[..m * k]);
                let expected = logits(&scalar(), &op, &rows);
                for cpu in &cpus {
                    let rows = input(cpu, &w, &x[..m * k]);
                    check(cpu, &op, &rows, &expected, &format!("{layout:?} [{n}, {k}] x {m}"));
                }
            }
        }
    }
}

#[test]
fn hostile_weights_and_rows_tell_what_the_row_has() {
    let cpus = all_cpus();
    for &layout in WeightLayout::ALL {
        let (n, k) = (100, 256);
        let w = pack(&scalar(), layout, n, k, true);
        let mut x = activations(6, k);
        x[k..2 * k].fill(0.0);
        x[3 * k] = f32::NAN;
        x[4 * k + 40] = f32::INFINITY;
        let op = LogitsOp { weight: &w, bias: None, scale: 1.0, softcap: None, n_sampled: n };
        let expected = logits(&scalar(), &op, &input(&scalar(), &w, &x));
        for cpu in &cpus {
            check(cpu, &op, &input(cpu, &w, &x), &expected, &format!("{layout:?}"));
        }
    }
}

/// Rows that are what the bias is, since all weights are zero.
fn of_values(cpus: &[Cpu], values: &[f32]) {
    let (n, k) = (values.len(), 8);
    let row = vec![0; WeightLayout::F32.row_bytes(k)];
    let w = PackedMatrix::pack(&scalar(), WeightLayout::F32, n, k, &|_| &row);
    for (scale, softcap) in [(1.0, None), (1.0, Some(30.0)), (2.0, None)] {
        let op = LogitsOp { weight: &w, bias: Some(values), scale, softcap, n_sampled: n };
        let expected = logits(&scalar(), &op, &input(&scalar(), &w, &[1.0; 3 * 8]));
        for cpu in cpus {
            check(cpu, &op, &input(cpu, &w, &[1.0; 3 * 8]), &expected, &format!("{values:?}"));
        }
    }
}

#[test]
fn ties_nan_and_infinities_are_told_as_the_sampler_tells_them() {
    let (cpus, mut random, hostile) = (all_cpus(), Random::new(41), hostile_floats());
    for n in [1, 3, 16, 17, 64, 65, 130, 700] {
        for kind in 0..6 {
            let values: Vec<f32> = (0..n)
                .map(|_| match kind {
                    0 => random.below(3) as f32,
                    1 => hostile[random.below(hostile.len())],
                    // Without a finite number.
                    2 => [f32::NAN, f32::NEG_INFINITY][random.below(2)],
                    3 => [f32::NAN, f32::INFINITY][random.below(2)],
                    // Plus infinity is the largest finite number.
                    4 => [f32::MAX, f32::INFINITY, f32::NAN, -1.0][random.below(4)],
                    _ => [0.0, -0.0, f32::NEG_INFINITY, -1e-45][random.below(4)],
                })
                .collect();
            of_values(&cpus, &values);
        }
    }
    // A lone finite one, however low, and an infinite one far from it.
    let mut values = vec![f32::NAN; 300];
    values[200] = f32::MIN;
    of_values(&cpus, &values);
    values[10] = f32::INFINITY;
    of_values(&cpus, &values);
}

#[test]
fn the_first_of_equal_rows_wins_wherever_strips_end() {
    let (layout, n, k) = (WeightLayout::Q8G32, 1000, 64);
    let rows = source(layout, 7, k, false);
    let x = activations(9, k);
    for period in [1, 2, 7] {
        let w = PackedMatrix::pack(&scalar(), layout, n, k, &|row| &rows[row % period]);
        let op = LogitsOp { weight: &w, bias: None, scale: 1.0, softcap: None, n_sampled: n };
        let expected = logits(&scalar(), &op, &input(&scalar(), &w, &x));
        for mut cpu in all_cpus() {
            for strip_panels in [1, 3, usize::MAX] {
                let (row_block_bytes, min_parallel_bytes) = (1, 0);
                cpu.tuning = Tuning { strip_panels, row_block_bytes, min_parallel_bytes };
                check(&cpu, &op, &input(&cpu, &w, &x), &expected, &format!("every {period}"));
            }
        }
    }
}

#[test]
#[should_panic(expected = "whole rows of logits")]
fn rows_that_do_not_fit_are_refused() {
    let w = pack(&scalar(), WeightLayout::F32, 16, 4, false);
    let op = LogitsOp { weight: &w, bias: None, scale: 1.0, softcap: None, n_sampled: 16 };
    let x = input(&scalar(), &w, &[0.0; 8]);
    scalar().matmul_largest(&op, &x, &mut [0.0; 16], &mut []);
}
