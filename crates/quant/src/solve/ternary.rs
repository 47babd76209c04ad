//! Weights of -1, 0 and 1 with one scale per matrix: BitNet b1.58.
//!
//! ```text
//! w = scale * code       code = round(w / scale), from -1 to 1
//! ```
//!
//! Rounded to nearest, the scale is `mean |w|`, as in training: a model that was trained for ternary
//! weights becomes what it was trained to be. With a Hessian, for other models, the scale is the best
//! of nine from that on, each error is made good in the inputs that follow, and the scale is then
//! fitted to the codes.
//!
//! # Paper
//!
//! Ma et al., *The Era of 1-bit LLMs: All Large Language Models are in 1.58 Bits*, 2024.

use half::f16;

use super::gptq::{self, Factor, Levels};
use super::threads::for_chunks;
use super::{Hessian, Result, SolveError, Weights, projections};

/// Rows on which scales are tried.
const SAMPLE: usize = 64;
/// Scales that are tried, from the mean magnitude to twice as much.
const N_SCALES: i32 = 9;

/// A ternary matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct Ternary {
    /// Outputs and inputs.
    pub shape: [usize; 2],
    /// The weights over the scale, plus one; `[n, k]`.
    pub codes: Vec<u8>,
    /// The scale of all weights, a value of f16 where it is in the range of f16.
    pub scale: f32,
}

/// Rounds every weight to nearest; the scale is the mean magnitude.
///
/// # Errors
///
/// A weight that is no number.
pub fn solve(weights: Weights<'_>, n_threads: usize) -> Result<Ternary> {
    const CHUNK: usize = 1 << 16;
    weights.check_finite()?;
    let levels = One(in_half(mean(weights.values)));
    let mut codes = vec![0; weights.values.len()];
    for_chunks(&mut codes, CHUNK, n_threads, |chunk, codes| {
        let own = &weights.values[chunk * CHUNK..][..codes.len()];
        codes.iter_mut().zip(own).for_each(|(code, w)| *code = levels.round((), *w).0);
        Ok::<(), SolveError>(())
    })?;
    Ok(Ternary { shape: weights.shape, codes, scale: levels.0 })
}

/// Rounds one input after the other, and makes each error good in those that follow.
///
/// # Errors
///
/// A weight that is no number.
///
/// # Panics
///
/// When the factor or the Hessian is of another number of inputs.
pub fn compensated(
    weights: Weights<'_>,
    hessian: &Hessian,
    factor: &Factor,
    n_threads: usize,
) -> Result<Ternary> {
    weights.check_finite()?;
    let (k, mean) = (weights.shape[1], mean(weights.values));
    let (_, values) = weights.sample(SAMPLE);
    let sample = Weights { shape: [values.len() / k.max(1), k], values: &values };
    let rounded = |weights: Weights<'_>, scale: f32| -> Result<Ternary> {
        let rounded = gptq::round_rows(weights, &One(scale), factor, n_threads)?;
        Ok(Ternary { shape: weights.shape, codes: rounded.codes, scale })
    };
    let mut best = (f64::INFINITY, in_half(mean));
    for i in 0..N_SCALES {
        let scale = in_half(mean * (i as f32 / (N_SCALES - 1) as f32).exp2());
        let found = rounded(sample, scale)?.weights();
        let apart: Vec<f32> = values.iter().zip(&found).map(|(w, found)| w - found).collect();
        let error = hessian.energy(&apart);
        if error < best.0 {
            best = (error, scale);
        }
    }
    let mut solved = rounded(weights, best.1)?;
    let of_rows = projections(weights, &solved.weights(), Some(hessian), n_threads);
    let (with, size) = of_rows.iter().fold((0.0, 0.0), |sum, row| (sum.0 + row.0, sum.1 + row.1));
    // Errors of rounding never turn the outputs around, but inputs of zeros have no outputs.
    if with > 0.0 && size > 0.0 {
        solved.scale = in_half(solved.scale * (with / size) as f32);
    }
    Ok(solved)
}

/// The three numbers of one scale.
struct One(f32);

impl Levels for One {
    type Step = ();

    fn group(&self, k: usize) -> usize {
        k.max(1)
    }

    fn step(&self, _: usize, _: usize, _: &[f32], _: &[f32]) -> Result<()> {
        Ok(())
    }

    fn round(&self, (): (), weight: f32) -> (u8, f32) {
        let code = (weight / self.0).round_ties_even().clamp(-1.0, 1.0);
        ((code + 1.0) as u8, self.0 * code)
    }
}

/// The mean magnitude; 1 where all weights are zero.
fn mean(weights: &[f32]) -> f32 {
    let sum: f64 = weights.iter().map(|w| f64::from(w.abs())).sum();
    let mean = (sum / weights.len().max(1) as f64) as f32;
    if mean > 0.0 { mean.max(f32::MIN_POSITIVE) } else { 1.0 }
}

/// The nearest value of f16, in which readers keep the scale; as it is where f16 has none.
fn in_half(scale: f32) -> f32 {
    let half = f16::from_f32(scale);
    if half.is_normal() { half.to_f32() } else { scale }
}

impl Ternary {
    /// The weights that the codes stand for, `[n, k]`.
    pub fn weights(&self) -> Vec<f32> {
        self.codes.iter().map(|code| self.scale * (f32::from(*code) - 1.0)).collect()
    }
}
