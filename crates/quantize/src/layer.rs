//! The matrices of one layer, from floats to codes.

use std::collections::BTreeMap;
use std::time::Instant;

use pelton_kernels::Cpu;
use pelton_model::{LayerMatrix, LayerShape, ModelFiles, Reads};
use pelton_quant::checkpoint::Written;
use pelton_quant::solve::{
    self, Grid, Group, Hessian, Weights, awq, gptq, output_error, quip, sampled_error,
};

use crate::config::Bits;
use crate::fold::{Folded, fold, round_vectors};
use crate::hessians::Hessians;
use crate::report::{MatrixReport, six_digits, weight_error};
use crate::source::{Matrices, transposed, vector};
use crate::written::{compensated, in_codebooks, in_words, rounded};
use crate::{Method, Options, QuantizeError, Result, Watch};

/// Outputs of a matrix that show what rounding to nearest would lose. All of them took as long as
/// solving the matrix.
const SAMPLED_ROWS: usize = 256;

/// The work on a model, common to all its layers.
pub(crate) struct Work<'a> {
    pub(crate) options: &'a Options,
    /// Bits of each module, where they differ.
    pub(crate) bits: Option<&'a Bits>,
    /// Kernels and threads.
    pub(crate) cpu: &'a Cpu,
    pub(crate) n_matrices: usize,
    /// Bytes of Hessians that are gathered together.
    pub(crate) most_bytes: u64,
    pub(crate) watch: Watch<'a>,
}

impl Work<'_> {
    /// Threads that solve.
    pub(crate) fn n_threads(&self) -> usize {
        self.cpu.team.n_threads()
    }

    /// The grid of a module.
    fn grid(&self, module: &str) -> Grid {
        let bits = self.bits.and_then(|bits| bits.get(module).copied());
        Grid { bits: bits.unwrap_or(self.options.grid.bits), ..self.options.grid }
    }
}

/// A layer's matrices as codes.
pub(crate) struct SolvedLayer {
    /// The matrices that are quantized, in the order of the layer's shape.
    pub(crate) matrices: Vec<(Written, MatrixReport)>,
    /// Vectors that were changed, by name.
    pub(crate) vectors: BTreeMap<String, Vec<f32>>,
}

impl SolvedLayer {
    /// Adds another part of the same layer.
    pub(crate) fn extend(&mut self, part: Self) {
        self.matrices.extend(part.matrices);
        self.vectors.extend(part.vectors);
    }

    /// Gives the model the values that were written.
    pub(crate) fn patch(&self, files: &mut ModelFiles, shape: &LayerShape) -> Result<()> {
        let values = self.matrices.iter().map(|(written, report)| {
            let matrix = shape.matrices.iter().find(|matrix| matrix.module == report.module);
            Ok((matrix.expect("invariant: a matrix of the layer"), written.weights()))
        });
        patch(files, values)?;
        for (name, values) in &self.vectors {
            files.patch(name, values);
        }
        Ok(())
    }
}

/// Gives the model the values of matrices `[n, k]`.
pub(crate) fn patch<'a>(
    files: &mut ModelFiles,
    matrices: impl IntoIterator<Item = Result<(&'a LayerMatrix, Vec<f32>)>>,
) -> Result<()> {
    let mut stacks: BTreeMap<String, Vec<f32>> = BTreeMap::new();
    for found in matrices {
        let (matrix, values) = found?;
        let [n, k] = matrix.shape;
        match &matrix.slice {
            Some(slice) => {
                if !stacks.contains_key(&slice.tensor) {
                    stacks.insert(slice.tensor.clone(), vector(files, &slice.tensor)?);
                }
                let stack = stacks.get_mut(&slice.tensor).expect("invariant: it was read");
                slice.write(&values, stack);
            }
            None if matrix.is_transposed => {
                files.patch(&matrix.tensor(), &transposed(&values, n, k));
            }
            None => files.patch(&matrix.tensor(), &values),
        }
    }
    stacks.iter().for_each(|(tensor, values)| files.patch(tensor, values));
    Ok(())
}

/// Solves the matrices of a layer, or of a part of it. `None` when it was stopped.
pub(crate) fn solve(
    shape: &LayerShape,
    files: &ModelFiles,
    matrices: &mut Matrices,
    hessians: &mut Hessians,
    work: &Work<'_>,
) -> Result<Option<SolvedLayer>> {
    let own: Vec<&LayerMatrix> =
        shape.matrices.iter().filter(|matrix| !work.options.keeps(&matrix.module)).collect();
    let errors_rounded = errors_of_rounding(&own, matrices, hessians, work)?;
    let started = Instant::now();
    let folded = match work.options.method.folds() {
        true => fold(files, shape, matrices, hessians, work.options)?,
        false => Folded::default(),
    };
    round_vectors(files, matrices);
    let errors_scaled = match folded.alphas.is_empty() {
        true => vec![None; own.len()],
        false => errors_of_rounding(&own, matrices, hessians, work)?,
    };
    let folding = started.elapsed().as_secs_f64() / own.len().max(1) as f64;
    let mut factors = BTreeMap::new();
    let mut solved = Vec::new();
    for (i, matrix) in own.into_iter().enumerate() {
        if (work.watch.is_stopped)() {
            return Ok(None);
        }
        let started = Instant::now();
        let weights = Weights { shape: matrix.shape, values: &matrices.values[&matrix.module] };
        let place = hessians.of(matrix);
        let known = (place, errors_scaled[i].or(errors_rounded[i]));
        let Solution { written, damping, is_worse } =
            solve_matrix(matrix, weights, known, &mut factors, work)
                .map_err(QuantizeError::matrix(&matrix.module))?;
        let values = written.weights();
        let hessian = place.map(|(_, hessian)| hessian);
        let error = hessian.map(|hessian| six_digits(output_error(weights, &values, hessian)));
        let alpha = matrix.reads.and_then(|reads| folded.alphas.get(&reads).copied());
        let report = MatrixReport {
            module: matrix.module.clone(),
            shape: matrix.shape,
            bits: six_digits(8.0 * n_bytes(&written, work.options) as f64 / values.len() as f64),
            error_rounded: errors_rounded[i],
            error_scaled: errors_scaled[i].filter(|_| alpha.is_some()),
            error,
            weight_error: weight_error(weights.values, &values),
            alpha,
            n_outliers: crate::report::n_outliers(weights.values),
            is_unsolved: work.options.method.needs_calibration() && hessian.is_none(),
            is_few: matrix.reads.is_some_and(|reads| hessians.is_few(reads)),
            damping: damping.map(six_digits),
            is_worse,
            n_rows: hessians.n_rows(matrix),
            n_large_inputs: hessian.map(|hessian| crate::report::n_large(&hessian.sizes())),
            seconds: six_digits(started.elapsed().as_secs_f64() + folding),
        };
        (work.watch.progress)(&report, work.n_matrices);
        solved.push((written, report));
    }
    let vectors = std::mem::take(&mut matrices.vectors);
    Ok(Some(SolvedLayer { matrices: solved, vectors }))
}

/// Bytes of a matrix in the file, without an order of inputs that says nothing.
pub(crate) fn n_bytes(written: &Written, options: &Options) -> u64 {
    let tensors = written.tensors().into_iter();
    let counted = tensors.filter(|tensor| tensor.suffix != "g_idx" || options.gptq.act_order);
    counted.map(|tensor| tensor.data.len() as u64).sum()
}

/// The relative error of each matrix when it is rounded to nearest, from [`SAMPLED_ROWS`] of its
/// outputs; `None` without a calibration.
fn errors_of_rounding(
    own: &[&LayerMatrix],
    matrices: &Matrices,
    hessians: &Hessians,
    work: &Work<'_>,
) -> Result<Vec<Option<f64>>> {
    let error = |matrix: &&LayerMatrix| {
        let Some((_, hessian)) = hessians.of(matrix) else { return Ok(None) };
        let weights = Weights { shape: matrix.shape, values: &matrices.values[&matrix.module] };
        let grid = work.grid(&matrix.module);
        let written = rounded(weights, work.options, &grid, work.n_threads());
        let written = written.map_err(QuantizeError::matrix(&matrix.module))?;
        let error = sampled_error(weights, &written.weights(), hessian, SAMPLED_ROWS);
        Ok(Some(six_digits(error)))
    };
    own.iter().map(error).collect()
}

/// A matrix as it is written.
struct Solution {
    written: Written,
    /// The damping of its Hessian, where it was solved with one.
    damping: Option<f64>,
    /// Whether it is rounded to nearest because every damping was worse.
    is_worse: bool,
}

impl From<Written> for Solution {
    fn from(written: Written) -> Self {
        Self { written, damping: None, is_worse: false }
    }
}

/// Solves one matrix; `factors` keeps what matrices with the same inputs share. `error_rounded` is
/// the error that it has when every weight is rounded to nearest, and is never exceeded.
fn solve_matrix(
    matrix: &LayerMatrix,
    weights: Weights<'_>,
    (place, error_rounded): (Option<(Reads, &Hessian)>, Option<f64>),
    factors: &mut BTreeMap<Reads, gptq::Factor>,
    work: &Work<'_>,
) -> solve::Result<Solution> {
    let (grid, options) = (work.grid(&matrix.module), work.options);
    let Some((reads, hessian)) = place else {
        return Ok(rounded(weights, options, &grid, work.n_threads())?.into());
    };
    let (own, is_compensated) = match options.method {
        Method::Gptq => (options.gptq, false),
        Method::Awq => {
            let factors = vec![1.0; hessian.k()];
            let scales = awq::Scales { factors, alpha: 0.0 };
            return Ok(in_words(awq::solve(weights, &grid, hessian, &scales)?, options).into());
        }
        Method::Aqlm => {
            let written = in_codebooks(weights, options, &grid, Some(hessian), work.n_threads())?;
            return Ok(written.into());
        }
        // Where a row has one scale, the order of its inputs costs nothing.
        method if method.compensates() => {
            let act_order = !matches!(grid.group, Group::Inputs(_));
            (gptq::Options { act_order, ..options.gptq }, true)
        }
        _ => return Ok(rounded(weights, options, &grid, work.n_threads())?.into()),
    };
    let new_factor = |own: gptq::Options| match options.method {
        Method::Quip => quip::factor(hessian, own),
        _ => gptq::Factor::new(hessian, own),
    };
    let solve = |factor: &gptq::Factor| match is_compensated {
        true => compensated(weights, options, hessian, factor, work.n_threads()),
        false => {
            let solved = gptq::solve(weights, &grid, factor, work.n_threads())?;
            Ok(in_words(solved, options))
        }
    };
    let is_worse = |written: &Written| {
        let error = sampled_error(weights, &written.weights(), hessian, SAMPLED_ROWS);
        error_rounded.is_some_and(|rounded| error.is_nan() || six_digits(error) > rounded)
    };
    let first = factor(factors, reads, || new_factor(own))?;
    let mut damping = first.damping();
    let mut written = solve(first)?;
    // Errors that too little damping multiplies are larger than what they make good.
    while is_worse(&written) {
        damping *= 10.0;
        if damping > 1.0 {
            written = rounded(weights, options, &grid, work.n_threads())?;
            return Ok(Solution { written, damping: None, is_worse: true });
        }
        let more = new_factor(gptq::Options { damping, ..own })?;
        damping = more.damping();
        written = solve(&more)?;
    }
    Ok(Solution { written, damping: Some(damping), is_worse: false })
}

/// The factor of what is read at a place. Of wide layers one is large, so that only the last is kept.
fn factor(
    factors: &mut BTreeMap<Reads, gptq::Factor>,
    reads: Reads,
    new: impl FnOnce() -> solve::Result<gptq::Factor>,
) -> solve::Result<&gptq::Factor> {
    if !factors.contains_key(&reads) {
        factors.clear();
        factors.insert(reads, new()?);
    }
    Ok(&factors[&reads])
}
