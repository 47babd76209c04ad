//! Solvers: which codes a matrix gets when it is quantized, one method per file.
//!
//! ```text
//! weights [n, k] ─┬─ rtn ──────────────────────────────────────┐
//!                 ├─ gptq ── Hessian of the layer's inputs ────┼─▶ Solved: codes, scales, zero points
//!                 ├─ awq ─── Hessian and sizes of the inputs ──┘
//!                 └─ fp8, nf4, fp4, int8, hqq, quip, ───────────▶ a type of their own each
//!                    aqlm, ternary (all but nf4 and hqq also with the Hessian)
//!
//! w[n][j] = scale[n][g] * (code[n][j] - zero[n][g]),  g the group of input j
//! ```
//!
//! A solver sees one layer's matrices and what was gathered about their inputs, and knows nothing of
//! models or files. Scales are rounded to the type of the file, mostly f16, before codes are chosen, so
//! a solver's error is the file's error. `smooth` chooses no codes: it moves the size of inputs to the
//! weights.
//!
//! Rows do not depend on each other once the Hessian is factored: they are shared among threads, and
//! no bit depends on how many there are.

pub mod aqlm;
pub mod awq;
mod cholesky;
pub mod fp4;
pub mod fp8;
pub mod gptq;
mod grid;
mod hessian;
pub mod hqq;
pub mod int8;
mod matrices;
pub mod nf4;
pub mod quip;
pub mod rtn;
pub mod smooth;
pub mod ternary;
mod threads;

pub use grid::{Grid, Group};
pub use hessian::Hessian;

/// Why a matrix cannot be quantized.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SolveError {
    /// A weight is NaN or infinite.
    #[error("the weight of output {row} and input {column} is no finite number")]
    Weight {
        /// Output.
        row: usize,
        /// Input.
        column: usize,
    },
    /// A weight needs a scale beyond f16.
    #[error("output {row} has weights too large for a scale in f16")]
    Scale {
        /// Output.
        row: usize,
    },
    /// A group size that does not divide the inputs.
    #[error("{k} inputs are not a multiple of the group of {group}")]
    Group {
        /// Inputs.
        k: usize,
        /// Inputs of a group.
        group: usize,
    },
    /// An activation of the calibration is NaN or infinite.
    #[error("an input of the calibration is no finite number")]
    Activation,
    /// The Hessian cannot be factored, however much is added to its diagonal.
    #[error("the Hessian of the inputs is singular")]
    Singular,
}

/// Result of a solver.
pub type Result<T> = std::result::Result<T, SolveError>;

/// The weights of one matrix, `[n, k]`, rows one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Weights<'a> {
    /// Outputs and inputs.
    pub shape: [usize; 2],
    /// `[n, k]`.
    pub values: &'a [f32],
}

impl Weights<'_> {
    /// Checks that every weight is a number and that groups divide the inputs.
    fn check(&self, grid: &Grid) -> Result<()> {
        let k = self.shape[1];
        if k == 0 || !k.is_multiple_of(grid.group.inputs(k)) {
            return Err(SolveError::Group { k, group: grid.group.inputs(k) });
        }
        self.check_finite()
    }

    /// Evenly spaced rows, at most `most` of them, and how many rows each stands for.
    fn sample(&self, most: usize) -> (usize, Vec<f32>) {
        let stride = self.shape[0].div_ceil(most).max(1);
        let rows = self.values.chunks_exact(self.shape[1].max(1)).step_by(stride);
        (stride, rows.flatten().copied().collect())
    }

    /// Checks that every weight is a number.
    fn check_finite(&self) -> Result<()> {
        let [n, k] = self.shape;
        assert_eq!(self.values.len(), n * k, "values of the shape");
        match self.values.iter().position(|w| !w.is_finite()) {
            Some(at) => Err(SolveError::Weight { row: at / k, column: at % k }),
            None => Ok(()),
        }
    }
}

/// A quantized matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct Solved {
    /// Outputs and inputs.
    pub shape: [usize; 2],
    /// Bits of a code.
    pub bits: usize,
    /// `[n, k]`.
    pub codes: Vec<u8>,
    /// `[n, groups]`, each a value of f16.
    pub scales: Vec<f32>,
    /// `[n, groups]`.
    pub zeros: Vec<u8>,
    /// Group of each input, `[k]`.
    pub groups: Vec<u32>,
}

impl Solved {
    /// Groups of inputs.
    pub fn n_groups(&self) -> usize {
        self.scales.len() / self.shape[0].max(1)
    }

    /// The weights that the codes stand for, `[n, k]`.
    pub fn weights(&self) -> Vec<f32> {
        let n_groups = self.n_groups();
        let rows = self.codes.chunks_exact(self.shape[1].max(1)).enumerate();
        rows.flat_map(|(row, codes)| {
            codes.iter().zip(&self.groups).map(move |(code, group)| {
                let at = row * n_groups + *group as usize;
                self.scales[at] * (f32::from(*code) - f32::from(self.zeros[at]))
            })
        })
        .collect()
    }
}

/// The factor of each output that makes the error of the layer's outputs least, or that of the weights
/// where there is no Hessian; `None` where what was found gives nothing.
fn fitted(
    original: Weights<'_>,
    found: &[f32],
    hessian: Option<&Hessian>,
    n_threads: usize,
) -> Vec<Option<f32>> {
    let rows = projections(original, found, hessian, n_threads).into_iter();
    rows.map(|(with, size)| (size > 0.0).then(|| (with / size) as f32)).collect()
}

/// Of each row `w` and what was found for it, `q`: `w H qᵀ` and `q H qᵀ`, where there is no Hessian
/// `w qᵀ` and `q qᵀ`.
fn projections(
    original: Weights<'_>,
    found: &[f32],
    hessian: Option<&Hessian>,
    n_threads: usize,
) -> Vec<(f64, f64)> {
    const ROWS: usize = 64;
    let k = original.shape[1];
    let mut sums = vec![(0.0, 0.0); original.shape[0]];
    let chunks = threads::for_chunks(&mut sums, ROWS, n_threads, |chunk, sums| {
        let rows = chunk * ROWS * k..(chunk * ROWS + sums.len()) * k;
        let (original, found) = (&original.values[rows.clone()], &found[rows]);
        let products = hessian.map_or_else(|| found.to_vec(), |hessian| hessian.product(found));
        for (i, sum) in sums.iter_mut().enumerate() {
            let own = i * k..(i + 1) * k;
            let dot = |a: &[f32]| -> f64 {
                let pairs = a[own.clone()].iter().zip(&products[own.clone()]);
                pairs.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
            };
            *sum = (dot(original), dot(found));
        }
        Ok::<(), SolveError>(())
    });
    chunks.expect("invariant: nothing here fails");
    sums
}

/// Relative error of a layer's output, `|ΔW X|² / |W X|²`; zero where the outputs are zero.
///
/// # Panics
///
/// When the shapes differ.
pub fn output_error(original: Weights<'_>, quantized: &[f32], hessian: &Hessian) -> f64 {
    let delta: Vec<f32> = original.values.iter().zip(quantized).map(|(w, q)| w - q).collect();
    let whole = hessian.energy(original.values);
    if whole > 0.0 { hessian.energy(&delta) / whole } else { 0.0 }
}

/// Relative error of a layer's output, estimated from at most `most_rows` outputs, evenly spaced.
///
/// # Panics
///
/// When the shapes differ.
pub fn sampled_error(
    original: Weights<'_>,
    quantized: &[f32],
    hessian: &Hessian,
    most_rows: usize,
) -> f64 {
    let [(_, rows), (_, quantized)] =
        [original.values, quantized].map(|values| Weights { values, ..original }.sample(most_rows));
    let shape = [rows.len() / original.shape[1].max(1), original.shape[1]];
    output_error(Weights { shape, values: &rows }, &quantized, hessian)
}
