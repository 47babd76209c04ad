//! Moments of a matrix's inputs: `H = Σ x xᵀ` over the rows of the calibration, and the mean and the
//! greatest size of each input.
//!
//! The error of a layer's output is exactly `Σ (Δw) H (Δw)ᵀ` over its rows, so nothing else of the
//! activations has to be kept: `k²` numbers in place of all rows.

use std::ops::Range;

use half::bf16;
use ndarray::linalg::general_mat_mul;
use pelton_kernels::{Activations, Cpu, Forms, MatmulOutput, PackedMatrix, WeightLayout};

use super::grid::in_lanes;
use super::matrices::{matrix, matrix_mut};
use super::threads::for_chunks;
use super::{Result, SolveError};

/// Inputs of a block of `H`: its products and both of their factors stay in a thread's cache.
const BLOCK: usize = 256;

/// Rows that are turned into columns at a time.
const TURNED: usize = 8;

/// Sums over the inputs of a matrix.
#[derive(Clone, Debug)]
pub struct Hessian {
    k: usize,
    n_threads: usize,
    /// Kernels, and a team of one: each thread computes blocks of its own.
    cpu: Cpu,
    is_bf16: bool,
    n_rows: u64,
    /// `[k, k]`, the lower half until [`finish`](Self::finish).
    sum: Vec<f32>,
    /// Sums of `|x|`, `[k]`.
    sizes: Vec<f64>,
    /// The greatest `|x|`, `[k]`.
    peaks: Vec<f32>,
}

impl Hessian {
    /// Of no rows yet, for a matrix of `k` inputs; computed with the kernels and on the threads of
    /// `cpu`.
    pub fn new(k: usize, cpu: &Cpu) -> Self {
        let (sum, sizes, peaks) = (vec![0.0; k * k], vec![0.0; k], vec![0.0; k]);
        let (n_threads, cpu) = (cpu.team.n_threads(), Cpu::with(cpu.kernels, 1));
        Self { k, n_threads, cpu, is_bf16: false, n_rows: 0, sum, sizes, peaks }
    }

    /// The same, of inputs rounded to bf16, as a matrix in bf16 reads them: many times as fast on
    /// processors that multiply it. Sums stay in f32.
    #[must_use]
    pub fn in_bf16(self) -> Self {
        Self { is_bf16: true, ..self }
    }

    /// Bytes that one of `k` inputs takes.
    pub fn bytes(k: usize) -> u64 {
        let k = k as u64;
        k.saturating_mul(k).saturating_mul(4).saturating_add(12 * k)
    }

    /// Bytes that are taken while `n_rows` rows are added.
    pub fn bytes_to_add(k: usize, n_rows: usize) -> u64 {
        (k as u64).saturating_mul(n_rows as u64).saturating_mul(8)
    }

    /// Adds rows of inputs, `[rows, k]`. All of `H` is read and written each time, so that many
    /// rows are best added at once.
    ///
    /// # Errors
    ///
    /// When an input is NaN or infinite.
    ///
    /// # Panics
    ///
    /// When these are no whole rows.
    pub fn add(&mut self, x: &[f32]) -> Result<()> {
        let k = self.k;
        assert!(x.len().is_multiple_of(k), "whole rows");
        if x.is_empty() {
            return Ok(());
        }
        let mut columns: Vec<Option<Columns>> = (0..k.div_ceil(BLOCK)).map(|_| None).collect();
        for_chunks(&mut columns, 1, self.n_threads, |block, columns| {
            columns[0] = Some(Columns::new(&self.cpu, x, k, block, self.is_bf16)?);
            Ok(())
        })?;
        let columns: Vec<Columns> = columns.into_iter().flatten().collect();
        self.n_rows += (x.len() / k) as u64;
        let sizes = columns.iter().flat_map(|columns| &columns.sizes);
        self.sizes.iter_mut().zip(sizes).for_each(|(sum, size)| *sum += f64::from(*size));
        let peaks = columns.iter().flat_map(|columns| &columns.peaks);
        self.peaks.iter_mut().zip(peaks).for_each(|(peak, x)| *peak = peak.max(*x));
        self.add_products(&columns)
    }

    /// Adds `x xᵀ` of each row: `H[i, j]` is the product of columns `i` and `j` of the rows, so
    /// that both sides of a product of matrices are columns, some as its weights and some as its
    /// inputs.
    ///
    /// Two layers of 2,048 and 8,192 inputs took 172 seconds of GPTQ with faer's product of f32,
    /// and 101 with this, calibration included (Granite Rapids, two threads, bf16 in tiles). Tried
    /// and dropped: blocks of 512 inputs, which take as long.
    fn add_products(&mut self, columns: &[Columns]) -> Result<()> {
        let (k, cpu) = (self.k, &self.cpu);
        for_chunks(&mut self.sum, BLOCK * k, self.n_threads, |band, rows| {
            let mut product = vec![0.0_f32; BLOCK * BLOCK];
            for (block, before) in columns[..=band].iter().enumerate() {
                let n = before.weights.n();
                let out = MatmulOutput { data: &mut product, stride: n, offset: 0 };
                cpu.matmul(&before.weights, &columns[band].inputs, out);
                for (sums, product) in rows.chunks_exact_mut(k).zip(product.chunks_exact(n)) {
                    let sums = &mut sums[block * BLOCK..][..n];
                    sums.iter_mut().zip(product).for_each(|(sum, x)| *sum += x);
                }
            }
            Ok::<(), SolveError>(())
        })
    }

    /// Fills the upper half, once all rows are added.
    #[must_use]
    pub fn finish(mut self) -> Self {
        for i in 0..self.k {
            for j in 0..i {
                self.sum[j * self.k + i] = self.sum[i * self.k + j];
            }
        }
        self
    }

    /// Inputs.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Rows that were added.
    pub fn n_rows(&self) -> u64 {
        self.n_rows
    }

    /// Kernels, and a team of one.
    pub(super) fn cpu(&self) -> &Cpu {
        &self.cpu
    }

    /// Threads that compute with it.
    pub(super) fn n_threads(&self) -> usize {
        self.n_threads
    }

    /// The entry of two inputs.
    pub(super) fn at(&self, i: usize, j: usize) -> f32 {
        self.sum[i * self.k + j]
    }

    /// The mean of `|x|` of each input.
    pub fn sizes(&self) -> Vec<f32> {
        let n = self.n_rows.max(1) as f64;
        self.sizes.iter().map(|sum| (sum / n) as f32).collect()
    }

    /// The greatest `|x|` of each input.
    pub fn peaks(&self) -> &[f32] {
        &self.peaks
    }

    /// The mean of `x²` of each input.
    pub fn squares(&self) -> Vec<f32> {
        let n = self.n_rows.max(1) as f32;
        (0..self.k).map(|j| self.at(j, j) / n).collect()
    }

    /// All entries, `[k, k]`.
    pub(super) fn sum(&self) -> &[f32] {
        &self.sum
    }

    /// The row of one input.
    pub(super) fn row(&self, i: usize) -> &[f32] {
        &self.sum[i * self.k..][..self.k]
    }

    /// `δ H` of some rows `[rows, k]`.
    pub(super) fn product(&self, rows: &[f32]) -> Vec<f32> {
        let k = self.k;
        let mut product = vec![0.0_f32; rows.len()];
        let out = &mut matrix_mut(&mut product, k);
        general_mat_mul(1.0, &matrix(rows, k), &matrix(&self.sum, k), 0.0, out);
        product
    }

    /// The same with a share of its mean added to the diagonal, whose mean is then 1 and that share.
    #[must_use]
    pub(super) fn damped(&self, share: f64) -> Self {
        let mut damped = self.clone();
        let live = (0..self.k).map(|j| f64::from(self.at(j, j))).filter(|x| *x > 0.0);
        let (n_live, total) = live.fold((0, 0.0), |(n, total), x| (n + 1, total + x));
        let mean = if n_live == 0 { 1.0 } else { total / f64::from(n_live) };
        damped.sum.iter_mut().for_each(|x| *x = (f64::from(*x) / mean) as f32);
        for j in 0..self.k {
            let size = &mut damped.sum[j * self.k + j];
            // An input that is always zero says nothing about the others.
            *size = if *size > 0.0 { *size } else { 1.0 } + share.max(1e-8) as f32;
        }
        damped
    }

    /// The same inputs, each divided by its factor.
    #[must_use]
    pub fn divided(&self, factors: &[f32]) -> Self {
        let mut scaled = self.clone();
        for (i, row) in scaled.sum.chunks_exact_mut(self.k).enumerate() {
            for (x, factor) in row.iter_mut().zip(factors) {
                *x /= factor * factors[i];
            }
        }
        scaled.sizes.iter_mut().zip(factors).for_each(|(size, factor)| *size /= f64::from(*factor));
        scaled.peaks.iter_mut().zip(factors).for_each(|(peak, factor)| *peak /= factor);
        scaled
    }

    /// `Σ w H wᵀ` over the rows of a matrix `[n, k]`: the sum of the squares of its outputs.
    ///
    /// # Panics
    ///
    /// When these are no whole rows.
    pub fn energy(&self, weights: &[f32]) -> f64 {
        /// Most rows at a time, which bounds memory.
        const ROWS: usize = 2048;
        let k = self.k;
        assert!(weights.len().is_multiple_of(k), "whole rows");
        let mut energy = 0.0;
        for rows in weights.chunks(ROWS * k) {
            let mut inputs = Activations::new(k, Forms::F32);
            self.cpu.write_rows(rows, &mut inputs);
            let mut sums = vec![0.0_f64; k.div_ceil(BLOCK)];
            let blocks = for_chunks(&mut sums, 1, self.n_threads, |block, sum| {
                let part = Part::new(self, block * BLOCK, BLOCK.min(k - block * BLOCK), 0..k);
                let (own, mut product) = (part.first..part.first + part.n(), Vec::new());
                part.product(&inputs, &mut product);
                let pairs = rows.chunks_exact(k).zip(product.chunks_exact(part.n()));
                let of_row = |(row, product): (&[f32], &[f32])| {
                    in_lanes(&row[own.clone()], product, |w, p| w * p)
                };
                sum[0] = pairs.map(of_row).sum();
                Ok::<(), SolveError>(())
            });
            blocks.expect("invariant: nothing here fails");
            energy += sums.iter().sum::<f64>();
        }
        energy
    }
}

/// Some columns of `H`, packed for products with rows of errors.
pub(super) struct Part<'a> {
    first: usize,
    weights: PackedMatrix,
    cpu: &'a Cpu,
}

impl<'a> Part<'a> {
    /// The `n` columns from `first`, of the rows `inputs`.
    pub(super) fn new(hessian: &'a Hessian, first: usize, n: usize, inputs: Range<usize>) -> Self {
        let cpu = &hessian.cpu;
        // `H` is symmetric: its columns are its rows.
        let weights =
            PackedMatrix::pack_with(cpu, WeightLayout::F32, n, inputs.len(), &|column, out| {
                let row = hessian.row(first + column);
                write_le(&row[inputs.clone()], out, f32::to_le_bytes);
            });
        Self { first, weights, cpu }
    }

    /// Columns.
    fn n(&self) -> usize {
        self.weights.n()
    }

    /// `δ H` of rows of the part's inputs, `[rows, n]`, in place of what `out` holds.
    pub(super) fn product(&self, rows: &Activations, out: &mut Vec<f32>) {
        out.clear();
        out.resize(rows.n_rows() * self.n(), 0.0);
        let data = MatmulOutput { data: out, stride: self.n(), offset: 0 };
        self.cpu.matmul(&self.weights, rows, data);
    }
}

/// Some columns of a matrix's inputs, as both sides of a product.
struct Columns {
    /// `[columns, rows]`.
    weights: PackedMatrix,
    /// The same.
    inputs: Activations,
    /// Sums of `|x|`, `[columns]`.
    sizes: Vec<f32>,
    /// The greatest `|x|`, `[columns]`.
    peaks: Vec<f32>,
}

impl Columns {
    /// Columns of block `block` of rows of `k` inputs.
    ///
    /// # Errors
    ///
    /// When an input is NaN or infinite.
    fn new(cpu: &Cpu, x: &[f32], k: usize, block: usize, is_bf16: bool) -> Result<Self> {
        let (m, first) = (x.len() / k, block * BLOCK);
        let n = BLOCK.min(k - first);
        let (mut sizes, mut peaks) = (vec![0.0_f32; n], vec![0.0_f32; n]);
        let mut turned = vec![0.0_f32; n * m];
        // Some rows at a time, so that what is written next to each other is still in the cache.
        for (at, rows) in x.chunks(TURNED * k).enumerate() {
            for row in rows.chunks_exact(k) {
                let row = &row[first..first + n];
                for ((size, peak), x) in sizes.iter_mut().zip(&mut peaks).zip(row) {
                    *size += x.abs();
                    *peak = if x.abs() > *peak { x.abs() } else { *peak };
                }
            }
            for i in 0..n {
                let column = rows[first + i..].iter().step_by(k);
                let out = turned[i * m + at * TURNED..].iter_mut().zip(column);
                out.for_each(|(out, x)| {
                    *out = if is_bf16 { bf16::from_f32(*x).to_f32() } else { *x };
                });
            }
        }
        if sizes.iter().any(|size| !size.is_finite()) {
            return Err(SolveError::Activation);
        }
        // Where no instruction multiplies bf16, its floats are as fast, and give the same products.
        let layout = match is_bf16 && cpu.kernels.uses_bf16_dot() {
            true => WeightLayout::Bf16,
            false => WeightLayout::F32,
        };
        let weights = PackedMatrix::pack_with(cpu, layout, n, m, &|row, out| {
            let row = &turned[row * m..][..m];
            match layout {
                WeightLayout::Bf16 => write_le(row, out, |x| bf16::from_f32(x).to_le_bytes()),
                _ => write_le(row, out, f32::to_le_bytes),
            }
        });
        let mut inputs = Activations::new(m, Forms::default().read_by(cpu, &weights));
        cpu.write_rows(&turned, &mut inputs);
        Ok(Self { weights, inputs, sizes, peaks })
    }
}

/// Writes numbers as bytes of `N` each.
fn write_le<const N: usize>(row: &[f32], out: &mut [u8], bytes: impl Fn(f32) -> [u8; N]) {
    out.as_chunks_mut().0.iter_mut().zip(row).for_each(|(out, x)| *out = bytes(*x));
}

#[cfg(test)]
mod tests {
    use pelton_kernels::Kernels;

    use super::*;

    fn cpu(n_threads: usize) -> Cpu {
        Cpu::with(Kernels::best(), n_threads)
    }

    #[test]
    fn the_energy_of_weights_is_that_of_their_outputs() {
        let (m, k) = (37, 150);
        let x: Vec<f32> = (0..m * k).map(|i| ((i * 7919) % 101) as f32 / 50.0 - 1.0).collect();
        let w: Vec<f32> = (0..3 * k).map(|i| ((i * 104_729) % 97) as f32 / 48.0 - 1.0).collect();
        let mut expected = 0.0_f64;
        for x in x.chunks(k) {
            for w in w.chunks(k) {
                let y: f64 = x.iter().zip(w).map(|(x, w)| f64::from(x * w)).sum();
                expected += y * y;
            }
        }
        for n_threads in [1, 3] {
            let mut hessian = Hessian::new(k, &cpu(n_threads));
            hessian.add(&x[..20 * k]).expect("numbers");
            hessian.add(&x[20 * k..]).expect("numbers");
            let hessian = hessian.finish();
            let energy = hessian.energy(&w);
            assert!((energy / expected - 1.0).abs() < 1e-4, "{energy} {expected}");
            assert_eq!(hessian.n_rows(), m as u64);
            let size: f32 = x.iter().skip(5).step_by(k).map(|x| x.abs()).sum::<f32>() / m as f32;
            assert!((hessian.sizes()[5] - size).abs() < 1e-5);
        }
    }

    #[test]
    fn sums_in_bf16_are_those_of_rounded_inputs_by_all_kernels_and_on_any_number_of_threads() {
        // Blocks and a rest; rows that are no whole pairs.
        let (m, k) = (45, 2 * BLOCK + 35);
        let x: Vec<f32> = (0..m * k).map(|i| ((i * 7919) % 10_007) as f32 / 5000.0 - 1.0).collect();
        let rounded: Vec<f32> = x.iter().map(|x| bf16::from_f32(*x).to_f32()).collect();
        let sum = |cpu: &Cpu, x: &[f32], in_bf16: bool| {
            let hessian = Hessian::new(k, cpu);
            let mut hessian = if in_bf16 { hessian.in_bf16() } else { hessian };
            hessian.add(&x[..20 * k]).expect("numbers");
            hessian.add(&x[20 * k..]).expect("numbers");
            hessian.finish()
        };
        let expected = sum(&cpu(1), &rounded, false);
        for i in (0..k).step_by(31) {
            for j in (0..k).step_by(37) {
                let columns = rounded.chunks(k).map(|row| f64::from(row[i]) * f64::from(row[j]));
                let exact: f64 = columns.sum();
                assert!((f64::from(expected.at(i, j)) - exact).abs() < 1e-4, "{i} {j}");
            }
        }
        for kernels in Kernels::available() {
            let [one, three] = [1, 3].map(|n| sum(&Cpu::with(kernels, n), &x, true));
            assert_eq!(one.sum, three.sum);
            // Sizes are of the inputs as they are.
            assert_eq!(one.sizes, sum(&cpu(1), &x, false).sizes);
            let far = one.sum.iter().zip(&expected.sum).map(|(a, b)| (a - b).abs());
            let far = far.fold(0.0, f32::max);
            assert!(far < 1e-4, "{}: {far}", kernels.name);
        }
    }

    #[test]
    fn an_input_that_is_no_number_is_refused() {
        let mut hessian = Hessian::new(2, &cpu(1));
        assert_eq!(hessian.add(&[1.0, f32::NAN]), Err(SolveError::Activation));
        assert_eq!(hessian.add(&[1.0, f32::INFINITY]), Err(SolveError::Activation));
        assert_eq!(hessian.n_rows(), 0);
    }
}
