//! Moments of a matrix's inputs: `H = Σ x xᵀ` over the rows of the calibration, and the mean and the
//! greatest size of each input.
//!
//! The error of a layer's output is exactly `Σ (Δw) H (Δw)ᵀ` over its rows, so nothing else of the
//! activations has to be kept: `k²` numbers in place of all rows.

use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};

use super::threads::for_chunks;
use super::{Result, SolveError};

/// Rows of `H` that one thread computes at a time.
const BAND: usize = 128;

/// Sums over the inputs of a matrix.
#[derive(Clone, Debug)]
pub struct Hessian {
    k: usize,
    n_threads: usize,
    n_rows: u64,
    /// `[k, k]`, the lower half until [`finish`](Self::finish).
    sum: Vec<f32>,
    /// Sums of `|x|`, `[k]`.
    sizes: Vec<f64>,
    /// The greatest `|x|`, `[k]`.
    peaks: Vec<f32>,
}

impl Hessian {
    /// Of no rows yet, for a matrix of `k` inputs.
    pub fn new(k: usize, n_threads: usize) -> Self {
        let (sum, sizes, peaks) = (vec![0.0; k * k], vec![0.0; k], vec![0.0; k]);
        Self { k, n_threads, n_rows: 0, sum, sizes, peaks }
    }

    /// Bytes that one of `k` inputs takes.
    pub fn bytes(k: usize) -> u64 {
        let k = k as u64;
        k.saturating_mul(k).saturating_mul(4).saturating_add(12 * k)
    }

    /// Adds rows of inputs, `[rows, k]`.
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
        // One pass over the rows, in f32, which vector units add.
        let mut sizes = vec![0.0_f32; k];
        for row in x.chunks_exact(k) {
            for ((size, peak), x) in sizes.iter_mut().zip(&mut self.peaks).zip(row) {
                *size += x.abs();
                *peak = if x.abs() > *peak { x.abs() } else { *peak };
            }
        }
        if sizes.iter().any(|size| !size.is_finite()) {
            return Err(SolveError::Activation);
        }
        let m = x.len() / k;
        self.n_rows += m as u64;
        self.sizes.iter_mut().zip(&sizes).for_each(|(sum, size)| *sum += f64::from(*size));
        let inputs = x;
        let x = MatRef::from_row_major_slice(inputs, m, k);
        for_chunks(&mut self.sum, BAND * k, self.n_threads, |band, rows| {
            let (first, n) = (band * BAND, rows.len() / k);
            let out = MatMut::from_row_major_slice_mut(rows, n, k).subcols_mut(0, first + n);
            // Turned here, because the product reads a turned view one element after the other: a fifth
            // of the time of a layer of 8,192 inputs.
            let mut turned = vec![0.0_f32; n * m];
            for (at, row) in inputs.chunks_exact(k).enumerate() {
                let own = row[first..first + n].iter().enumerate();
                own.for_each(|(i, x)| turned[i * m + at] = *x);
            }
            let left = MatRef::from_row_major_slice(&turned, n, m);
            let right = x.subcols(0, first + n);
            matmul(out, Accum::Add, left, right, 1.0_f32, Par::Seq);
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
        let (k, n) = (self.k, rows.len() / self.k);
        let mut product = vec![0.0_f32; rows.len()];
        let out = MatMut::from_row_major_slice_mut(&mut product, n, k);
        let left = MatRef::from_row_major_slice(rows, n, k);
        let hessian = MatRef::from_row_major_slice(&self.sum, k, k);
        matmul(out, Accum::Replace, left, hessian, 1.0_f32, Par::Seq);
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
        const ROWS: usize = 64;
        let k = self.k;
        assert!(weights.len().is_multiple_of(k), "whole rows");
        let mut sums = vec![0.0_f64; (weights.len() / k).div_ceil(ROWS)];
        let chunks = for_chunks(&mut sums, 1, self.n_threads, |chunk, sum| {
            let from = chunk * ROWS * k;
            let rows = &weights[from..weights.len().min(from + ROWS * k)];
            let product = self.product(rows);
            sum[0] = rows.iter().zip(&product).map(|(w, p)| f64::from(*w) * f64::from(*p)).sum();
            Ok::<(), SolveError>(())
        });
        chunks.expect("invariant: nothing here fails");
        sums.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let mut hessian = Hessian::new(k, n_threads);
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
    fn an_input_that_is_no_number_is_refused() {
        let mut hessian = Hessian::new(2, 1);
        assert_eq!(hessian.add(&[1.0, f32::NAN]), Err(SolveError::Activation));
        assert_eq!(hessian.add(&[1.0, f32::INFINITY]), Err(SolveError::Activation));
        assert_eq!(hessian.n_rows(), 0);
    }
}
