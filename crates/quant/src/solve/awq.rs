//! AWQ: inputs are scaled by their size before weights are rounded, and ranges are clipped.
//!
//! ```text
//! s_j = mean|x_j|^α, for α in 0, 1/20 .. 1       y = W x = (W · s) (x / s)
//! best α: least |(round(W · s) / s - W) X|²      over all matrices that read the same inputs
//! clip:   least error of each group's outputs    among ranges down to half of the weights'
//! ```
//!
//! The division of `x` is folded into what comes before: a norm's weight, the rows of another
//! matrix. Nothing stays in 16 bits. Errors are exact for the calibration: they are computed from
//! the Hessian, which holds all that a sum of squares needs.
//!
//! # Paper
//!
//! Lin et al., *AWQ: Activation-aware Weight Quantization for LLM Compression and Acceleration*,
//! 2023.

use super::rtn::round_groups;
use super::{Grid, Hessian, Result, SolveError, Solved, Weights, rtn};

/// Steps of the search for α.
const N_ALPHAS: usize = 20;
/// Ranges that are tried for a group.
const N_CLIPS: usize = 20;
/// The narrowest of these, as a share of the weights' range.
const LEAST_CLIP: f32 = 0.5;

/// The factors by which the inputs of some matrices are divided, and their weights multiplied.
#[derive(Clone, Debug, PartialEq)]
pub struct Scales {
    /// One for each input, above zero.
    pub factors: Vec<f32>,
    /// The α that they were made with; 0 for factors of 1.
    pub alpha: f32,
}

/// Finds the factors for matrices that all read the inputs of `hessian`.
///
/// # Errors
///
/// As [`rtn::solve`].
///
/// # Panics
///
/// When a matrix has another number of inputs.
pub fn scales(matrices: &[Weights<'_>], grid: &Grid, hessian: &Hessian) -> Result<Scales> {
    let sizes = hessian.sizes();
    let mut best: Option<(f64, Scales)> = None;
    for i in 0..=N_ALPHAS {
        let alpha = i as f32 / N_ALPHAS as f32;
        let factors = factors(&sizes, alpha);
        let mut error = 0.0;
        for matrix in matrices {
            assert_eq!(matrix.shape[1], hessian.k(), "matrices of these inputs");
            let scaled = multiplied(*matrix, &factors);
            let scaled = Weights { values: &scaled, ..*matrix };
            let rounded = rtn::solve(scaled, grid, hessian.n_threads())?.weights();
            let delta = |(at, (rounded, w)): (usize, (&f32, &f32))| {
                rounded / factors[at % factors.len()] - w
            };
            let delta: Vec<f32> =
                rounded.iter().zip(matrix.values).enumerate().map(delta).collect();
            error += hessian.energy(&delta);
        }
        if best.as_ref().is_none_or(|(least, _)| error < *least) {
            best = Some((error, Scales { factors, alpha }));
        }
    }
    Ok(best.expect("invariant: there is an α").1)
}

/// Weights with each input's column multiplied by its factor.
pub fn multiplied(weights: Weights<'_>, factors: &[f32]) -> Vec<f32> {
    let rows = weights.values.chunks_exact(factors.len().max(1));
    rows.flat_map(|row| row.iter().zip(factors).map(|(w, factor)| w * factor)).collect()
}

/// Rounds a matrix, each group to the range that leaves the least error; `scales` are those of its
/// inputs, and `hessian` is of the inputs before they are divided. The result reads divided inputs.
///
/// # Errors
///
/// As [`rtn::solve`].
///
/// # Panics
///
/// When the numbers of inputs differ.
pub fn solve(
    weights: Weights<'_>,
    grid: &Grid,
    hessian: &Hessian,
    scales: &Scales,
) -> Result<Solved> {
    assert_eq!(weights.shape[1], hessian.k(), "a matrix of these inputs");
    let values = multiplied(weights, &scales.factors);
    let scaled = Weights { values: &values, ..weights };
    scaled.check(grid)?;
    let divided = hessian.divided(&scales.factors);
    round_groups(scaled, grid, hessian.n_threads(), |row, first, group| {
        let (low, high) = group.iter().fold((0.0_f32, 0.0_f32), |(a, b), w| (a.min(*w), b.max(*w)));
        let mut best = None;
        let mut delta = vec![0.0_f32; group.len()];
        for i in 0..=N_CLIPS {
            let clip = 1.0 - (1.0 - LEAST_CLIP) * i as f32 / N_CLIPS as f32;
            let Some(step) = grid.step(low * clip, high * clip) else { continue };
            delta.iter_mut().zip(group).for_each(|(d, w)| *d = grid.round(step, *w).1 - w);
            let error = group_energy(&divided, first, &delta);
            if best.as_ref().is_none_or(|(least, _)| error < *least) {
                best = Some((error, step));
            }
        }
        best.map(|(_, step)| step).ok_or(SolveError::Scale { row })
    })
}

/// The error of a row's output that these inputs make; of larger groups, that of each block of
/// inputs by itself.
fn group_energy(hessian: &Hessian, first: usize, delta: &[f32]) -> f64 {
    const BLOCK: usize = 128;
    let mut sum = 0.0;
    for (block, delta) in delta.chunks(BLOCK).enumerate() {
        let first = first + block * BLOCK;
        for (i, a) in delta.iter().enumerate() {
            let product = |(j, b): (usize, &f32)| hessian.at(first + i, first + j) * b;
            sum += f64::from(a * delta.iter().enumerate().map(product).sum::<f32>());
        }
    }
    sum
}

/// `size^α`, such that the least and the greatest are each other's inverse.
fn factors(sizes: &[f32], alpha: f32) -> Vec<f32> {
    /// Inputs that are nearly always zero do not count as nothing.
    const LEAST: f32 = 1e-4;
    let powers: Vec<f32> = sizes.iter().map(|size| size.max(LEAST).powf(alpha)).collect();
    let (low, high) = powers
        .iter()
        .fold((f32::MAX, f32::MIN_POSITIVE), |(low, high), p| (low.min(*p), high.max(*p)));
    let middle = (low * high).sqrt();
    powers.iter().map(|power| power / middle).collect()
}
