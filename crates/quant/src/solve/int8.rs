//! Integers of 8 bits with a scale per output or per matrix: W8A8, and the rows of LLM.int8.
//!
//! ```text
//! scale = max|w| / 127       w = scale * code       code from -127 to 127
//! ```

use super::gptq::{self, Factor, Levels};
use super::threads::for_chunks;
use super::{Group, Result, SolveError, Weights};

/// A matrix of int8.
#[derive(Clone, Debug, PartialEq)]
pub struct Int8 {
    /// Outputs and inputs.
    pub shape: [usize; 2],
    /// Whether an output or all of the matrix has a scale.
    pub group: Group,
    /// `[n, k]`.
    pub codes: Vec<i8>,
    /// The largest magnitude of each output, `[n]`, or of the matrix, `[1]`; 127 for zeros.
    pub largest: Vec<f32>,
}

/// Rounds every weight to nearest.
///
/// # Errors
///
/// A weight that is no number.
///
/// # Panics
///
/// When a scale is asked for some inputs.
pub fn solve(weights: Weights<'_>, group: Group, n_threads: usize) -> Result<Int8> {
    weights.check_finite()?;
    let rows_of = Rows::new(weights, group);
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
            row.largest = rows_of.largest(values);
            let scale = row.largest / 127.0;
            row.codes = values.iter().map(|w| nearest(w / scale)).collect();
        }
        Ok::<(), SolveError>(())
    })?;
    let largest = rows_of.scales(rows.iter().map(|row| row.largest).collect());
    let codes = rows.into_iter().flat_map(|row| row.codes).collect();
    Ok(Int8 { shape: weights.shape, group, codes, largest })
}

/// Rounds one input after the other, and makes each error good in those that follow.
///
/// # Errors
///
/// A weight that is no number.
///
/// # Panics
///
/// When the factor is of another number of inputs, or a scale is asked for some inputs.
pub fn compensated(
    weights: Weights<'_>,
    group: Group,
    factor: &Factor,
    n_threads: usize,
) -> Result<Int8> {
    weights.check_finite()?;
    let rows = Rows::new(weights, group);
    let rounded = gptq::round_rows(weights, &rows, factor, n_threads)?;
    let codes = rounded.codes.into_iter().map(u8::cast_signed).collect();
    Ok(Int8 { shape: weights.shape, group, codes, largest: rows.scales(rounded.steps) })
}

/// Int8 with a scale per output, or one for all; its step is the largest magnitude.
struct Rows {
    /// The largest magnitude of all weights, where they share a scale.
    shared: Option<f32>,
}

impl Rows {
    fn new(weights: Weights<'_>, group: Group) -> Self {
        let shared = match group {
            Group::Tensor => Some(largest(weights.values)),
            Group::Row => None,
            Group::Inputs(_) => panic!("a scale of int8 is for an output or a matrix"),
        };
        Self { shared }
    }

    fn largest(&self, weights: &[f32]) -> f32 {
        self.shared.unwrap_or_else(|| largest(weights))
    }

    /// The steps of all rows as they are stored.
    fn scales(&self, of_rows: Vec<f32>) -> Vec<f32> {
        self.shared.map_or(of_rows, |shared| vec![shared])
    }
}

impl Levels for Rows {
    type Step = f32;

    fn group(&self, k: usize) -> usize {
        k.max(1)
    }

    fn step(&self, _: usize, _: usize, weights: &[f32], _: &[f32]) -> Result<f32> {
        Ok(self.largest(weights))
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
    /// The scale of each output, or of the matrix.
    pub fn scales(&self) -> Vec<f32> {
        self.largest.iter().map(|largest| largest / 127.0).collect()
    }

    /// The weights that the codes stand for, `[n, k]`.
    pub fn weights(&self) -> Vec<f32> {
        let scales = self.scales().into_iter().cycle();
        let rows = self.codes.chunks_exact(self.shape[1].max(1)).zip(scales);
        rows.flat_map(|(row, scale)| row.iter().map(move |code| scale * f32::from(*code))).collect()
    }
}
