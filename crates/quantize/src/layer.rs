//! One layer: a solver per matrix.

use std::collections::BTreeMap;
use std::time::Instant;

use pelton_model::{LayerMatrix, LayerShape, ModelFiles, Reads};
use pelton_quant::solve::{Hessian, Solved, Weights, awq, gptq, output_error, rtn};

use crate::calibrate::Hessians;
use crate::fold::fold;
use crate::source::{Matrices, transposed};
use crate::{MatrixReport, Method, Options, QuantizeError, Result, Watch};

/// The work on a model, common to all its layers.
pub(crate) struct Work<'a> {
    pub(crate) options: &'a Options,
    pub(crate) n_threads: usize,
    pub(crate) n_matrices: usize,
    pub(crate) watch: Watch<'a>,
}

/// A layer's matrices as codes.
pub(crate) struct SolvedLayer {
    /// In the order of the layer's shape.
    pub(crate) matrices: Vec<(Solved, MatrixReport)>,
    /// Vectors that were changed, by name.
    pub(crate) vectors: BTreeMap<String, Vec<f32>>,
}

impl SolvedLayer {
    /// Gives the model the values that were written.
    pub(crate) fn patch(&self, files: &mut ModelFiles, shape: &LayerShape) {
        for (matrix, (solved, _)) in shape.matrices.iter().zip(&self.matrices) {
            let [n, k] = matrix.shape;
            let values = solved.weights();
            match matrix.is_transposed {
                true => files.patch(&matrix.tensor(), &transposed(&values, n, k)),
                false => files.patch(&matrix.tensor(), &values),
            }
        }
        for (name, values) in &self.vectors {
            files.patch(name, values);
        }
    }

    pub(crate) fn into_reports(self) -> impl Iterator<Item = MatrixReport> {
        self.matrices.into_iter().map(|(_, report)| report)
    }
}

/// Solves the matrices of a layer. `None` when it was stopped.
pub(crate) fn solve(
    shape: &LayerShape,
    files: &ModelFiles,
    matrices: &mut Matrices,
    hessians: Option<Hessians>,
    work: &Work<'_>,
) -> Result<Option<SolvedLayer>> {
    let mut hessians = hessians.unwrap_or_default();
    let rounded = errors_of_rounding(shape, matrices, &hessians, work)?;
    let started = Instant::now();
    let alphas = match work.options.method {
        Method::Awq => fold(files, shape, matrices, &mut hessians, &work.options.grid)?,
        Method::Rtn | Method::Gptq => BTreeMap::new(),
    };
    let folding = started.elapsed().as_secs_f64() / shape.matrices.len().max(1) as f64;
    let mut factors = BTreeMap::new();
    let mut solved = Vec::new();
    for (matrix, error_rounded) in shape.matrices.iter().zip(rounded) {
        if (work.watch.is_stopped)() {
            return Ok(None);
        }
        let started = Instant::now();
        let weights = Weights { shape: matrix.shape, values: &matrices.values[&matrix.module] };
        let hessian = matrix.reads.and_then(|reads| hessians.get(&reads));
        let codes = solve_matrix(matrix, weights, hessian, &mut factors, work)
            .map_err(QuantizeError::matrix(&matrix.module))?;
        let error = hessian.map(|hessian| output_error(weights, &codes.weights(), hessian));
        let report = MatrixReport {
            module: matrix.module.clone(),
            shape: matrix.shape,
            error_rounded,
            error,
            alpha: matrix.reads.and_then(|reads| alphas.get(&reads).copied()),
            seconds: started.elapsed().as_secs_f64() + folding,
        };
        (work.watch.progress)(&report, work.n_matrices);
        solved.push((codes, report));
    }
    let vectors = std::mem::take(&mut matrices.vectors);
    Ok(Some(SolvedLayer { matrices: solved, vectors }))
}

/// The relative error of each matrix when it is rounded to nearest; `None` without a calibration.
fn errors_of_rounding(
    shape: &LayerShape,
    matrices: &Matrices,
    hessians: &Hessians,
    work: &Work<'_>,
) -> Result<Vec<Option<f64>>> {
    let error = |matrix: &LayerMatrix| {
        let Some(hessian) = matrix.reads.and_then(|reads| hessians.get(&reads)) else {
            return Ok(None);
        };
        let weights = Weights { shape: matrix.shape, values: &matrices.values[&matrix.module] };
        let rounded = rtn::solve(weights, &work.options.grid, work.n_threads);
        let rounded = rounded.map_err(QuantizeError::matrix(&matrix.module))?;
        Ok(Some(output_error(weights, &rounded.weights(), hessian)))
    };
    shape.matrices.iter().map(error).collect()
}

/// Solves one matrix; `factors` keeps what matrices with the same inputs share.
fn solve_matrix(
    matrix: &LayerMatrix,
    weights: Weights<'_>,
    hessian: Option<&Hessian>,
    factors: &mut BTreeMap<Reads, gptq::Factor>,
    work: &Work<'_>,
) -> pelton_quant::solve::Result<Solved> {
    let (grid, options) = (&work.options.grid, work.options);
    let calibrated = "invariant: methods with a calibration know what every matrix reads";
    match options.method {
        Method::Rtn => rtn::solve(weights, grid, work.n_threads),
        Method::Gptq => {
            let reads = matrix.reads.expect(calibrated);
            let factor = match factors.remove(&reads) {
                Some(factor) => factor,
                None => gptq::Factor::new(hessian.expect(calibrated), options.gptq)?,
            };
            let solved = gptq::solve(weights, grid, &factor, work.n_threads);
            // Of wide layers a factor is large, so that only the last one is kept.
            factors.clear();
            factors.insert(reads, factor);
            solved
        }
        Method::Awq => {
            let hessian = hessian.expect(calibrated);
            let factors = vec![1.0; hessian.k()];
            awq::solve(weights, grid, hessian, &awq::Scales { factors, alpha: 0.0 })
        }
    }
}
