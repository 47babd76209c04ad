//! Integers of 8 bits with a scale per output: W8A8, and the rows of LLM.int8.
//!
//! ```text
//! scale = max|w| / 127       w = scale * code       code from -127 to 127
//! ```

use super::gptq::{self, Factor, Levels};
use super::threads::for_chunks;
use super::{Result, SolveError, Weights};

/// A matrix of int8 rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Int8 {
    /// Outputs and inputs.
    pub shape: [usize; 2],
    /// `[n, k]`.
    pub codes: Vec<i8>,
    /// The largest magnitude of each output, `[n]`; 127 for outputs of zeros.
    pub largest: Vec<f32>,
}

/// Rounds every weight to nearest.
///
/// # Errors
///
/// A weight that is no number.
pub fn solve(weights: Weights<'_>, n_threads: usize) -> Result<Int8> {
    weights.check_finite()?;
    let [n, k] = weights.shape;
    struct Row {
        codes: Vec<i8>,
        largest: f32,
    }
    let mut rows: Vec<Row> = (0..n).map(|_| Row { codes: Vec::new(), largest: 127.0 }).collect();
    const ROWS: usize = 16;
    for_chunks(&mut rows, ROWS, n_threads, |chunk, rows| {
        for (i, row) in rows.iter_mut().enumerate() {
            let values = &weights.values[(chunk * ROWS + i) * k..][..k];
            row.largest = largest(values);
            let scale = row.largest / 127.0;
            row.codes = values.iter().map(|w| nearest(w / scale)).collect();
        }
        Ok::<(), SolveError>(())
    })?;
    let largest = rows.iter().map(|row| row.largest).collect();
    let codes = rows.into_iter().flat_map(|row| row.codes).collect();
    Ok(Int8 { shape: weights.shape, codes, largest })
}

/// Rounds one input after the other, and makes each error good in those that follow.
///
/// # Errors
///
/// A weight that is no number.
///
/// # Panics
///
/// When the factor is of another number of inputs.
pub fn compensated(weights: Weights<'_>, factor: &Factor, n_threads: usize) -> Result<Int8> {
    weights.check_finite()?;
    let rounded = gptq::round_rows(weights, &Rows, factor, n_threads)?;
    let codes = rounded.codes.into_iter().map(u8::cast_signed).collect();
    Ok(Int8 { shape: weights.shape, codes, largest: rounded.steps })
}

/// Int8 with a scale per output; its step is the largest magnitude.
struct Rows;

impl Levels for Rows {
    type Step = f32;

    fn group(&self, k: usize) -> usize {
        k.max(1)
    }

    fn step(&self, _: usize, _: usize, weights: &[f32], _: &[f32]) -> Result<f32> {
        Ok(largest(weights))
    }

    fn round(&self, largest: f32, weight: f32) -> (u8, f32) {
        let scale = largest / 127.0;
        let code = nearest(weight / scale);
        (code.cast_unsigned(), scale * f32::from(code))
    }
}

/// The magnitude that becomes 127; 127 for zeros.
fn largest(weights: &[f32]) -> f32 {
    let largest = weights.iter().fold(0.0_f32, |most, w| most.max(w.abs()));
    if largest > 0.0 { largest.max(127.0 * f32::MIN_POSITIVE) } else { 127.0 }
}

fn nearest(x: f32) -> i8 {
    x.round_ties_even().clamp(-127.0, 127.0) as i8
}

impl Int8 {
    /// The scale of each output.
    pub fn scales(&self) -> Vec<f32> {
        self.largest.iter().map(|largest| largest / 127.0).collect()
    }

    /// The weights that the codes stand for, `[n, k]`.
    pub fn weights(&self) -> Vec<f32> {
        let rows = self.codes.chunks_exact(self.shape[1].max(1)).zip(self.scales());
        rows.flat_map(|(row, scale)| row.iter().map(move |code| scale * f32::from(*code))).collect()
    }
}
