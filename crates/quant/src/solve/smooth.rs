//! SmoothQuant: the size of inputs moves to the weights, so that both can be int8.
//!
//! ```text
//! s_j = max|x_j|^α / max|w_j|^(1-α)         y = W x = (W · s) (x / s)
//! best α:  least error of the rounded weights, plus that of inputs rounded to int8
//! ```
//!
//! The error of the weights is exact: it is computed from the Hessian. Inputs are rounded by kernels
//! of other engines, to int8 with a scale per token. The largest input of a token is taken to be the
//! largest of all; its step makes an error of `step² / 12` in each input.
//!
//! # Paper
//!
//! Xiao et al., *SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language
//! Models*, 2023.

use super::awq::{Scales, multiplied};
use super::{Group, Hessian, Result, Weights, int8};

/// Steps of the search for α.
const N_ALPHAS: usize = 20;
/// Outputs of a matrix whose error is looked at.
const MOST_ROWS: usize = 256;

/// Finds the factors for matrices that all read the inputs of `hessian`, with this α or the one of
/// least error; `group` is as for [`int8::solve`].
///
/// # Errors
///
/// As [`int8::solve`].
///
/// # Panics
///
/// As [`int8::solve`], and when a matrix has another number of inputs.
pub fn scales(
    matrices: &[Weights<'_>],
    group: Group,
    hessian: &Hessian,
    alpha: Option<f32>,
) -> Result<Scales> {
    let k = hessian.k();
    let mut largest = vec![0.0_f32; k];
    for matrix in matrices {
        assert_eq!(matrix.shape[1], k, "matrices of these inputs");
        matrix.check_finite()?;
        for row in matrix.values.chunks_exact(k) {
            largest.iter_mut().zip(row).for_each(|(most, w)| *most = most.max(w.abs()));
        }
    }
    if let Some(alpha) = alpha {
        return Ok(Scales { factors: factors(hessian.peaks(), &largest, alpha), alpha });
    }
    let samples: Vec<(usize, Vec<f32>)> =
        matrices.iter().map(|matrix| matrix.sample(MOST_ROWS)).collect();
    let mut best: Option<(f64, Scales)> = None;
    for i in 0..=N_ALPHAS {
        let alpha = i as f32 / N_ALPHAS as f32;
        let factors = factors(hessian.peaks(), &largest, alpha);
        let mut error = 0.0;
        for (stride, values) in &samples {
            let weights = Weights { shape: [values.len() / k, k], values };
            error += *stride as f64 * loss(weights, group, &factors, hessian)?;
        }
        if best.as_ref().is_none_or(|(least, _)| error < *least) {
            best = Some((error, Scales { factors, alpha }));
        }
    }
    Ok(best.expect("invariant: there is an α").1)
}

/// The squared error of the outputs: of rounded weights, and of rounded inputs.
fn loss(weights: Weights<'_>, group: Group, factors: &[f32], hessian: &Hessian) -> Result<f64> {
    let k = factors.len();
    let scaled = multiplied(weights, factors);
    let solved = int8::solve(Weights { values: &scaled, ..weights }, group, hessian.n_threads())?;
    let rounded = solved.weights();
    let delta = |(at, (a, b)): (usize, (&f32, &f32))| (a - b) / factors[at % k];
    let delta: Vec<f32> = rounded.iter().zip(&scaled).enumerate().map(delta).collect();
    let largest = hessian.peaks().iter().zip(factors).map(|(peak, factor)| peak / factor);
    let step = f64::from(largest.fold(0.0, f32::max) / 127.0);
    let size: f64 = scaled.iter().map(|w| f64::from(*w).powi(2)).sum();
    Ok(hessian.energy(&delta) + hessian.n_rows() as f64 * step * step / 12.0 * size)
}

/// Factors with a geometric mean near 1.
fn factors(peaks: &[f32], largest: &[f32], alpha: f32) -> Vec<f32> {
    /// Inputs and columns that are nearly always zero do not count as nothing.
    const LEAST: f32 = 1e-5;
    let factor = |(peak, most): (&f32, &f32)| {
        (peak.max(LEAST).powf(alpha) / most.max(LEAST).powf(1.0 - alpha)).clamp(1e-4, 1e4)
    };
    let factors: Vec<f32> = peaks.iter().zip(largest).map(factor).collect();
    let sum: f64 = factors.iter().map(|factor| f64::from(*factor).ln()).sum();
    let middle = (sum / factors.len().max(1) as f64).exp() as f32;
    factors.iter().map(|factor| factor / middle).collect()
}

#[cfg(test)]
mod tests {
    use pelton_kernels::{Cpu, Kernels};

    use super::*;

    #[test]
    fn large_inputs_are_divided_and_the_error_of_both_sides_falls() {
        let k = 32;
        let mut hessian = Hessian::new(k, &Cpu::with(Kernels::best(), 1));
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
        };
        for _ in 0..256 {
            let row: Vec<f32> = (0..k).map(|j| next() * if j == 5 { 60.0 } else { 1.0 }).collect();
            hessian.add(&row).expect("numbers");
        }
        let hessian = hessian.finish();
        let values: Vec<f32> = (0..16 * k).map(|_| next()).collect();
        let weights = Weights { shape: [16, k], values: &values };
        let found = scales(&[weights], Group::Row, &hessian, None).expect("scales");
        let same = scales(&[weights], Group::Row, &hessian, Some(found.alpha)).expect("scales");
        assert_eq!(found, same);
        let none = scales(&[weights], Group::Row, &hessian, Some(0.0)).expect("scales");
        assert!(none.factors[5] < 4.0 * none.factors[6], "{none:?}");
        assert!(found.factors[5] > 4.0 * found.factors[6], "{found:?}");
        let plain = loss(weights, Group::Row, &vec![1.0; k], &hessian).expect("a loss");
        let smooth = loss(weights, Group::Row, &found.factors, &hessian).expect("a loss");
        assert!(smooth < 0.2 * plain, "{smooth} {plain}");
    }
}
