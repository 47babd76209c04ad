//! Floats of 8 bits, E4M3 or E5M2, with a scale per output, per block or per matrix.
//!
//! ```text
//! w     = scale * float(code)
//! scale = max|w| / largest number, times the power of 2^(1/8) from -3 to 7 with the least error
//! ```
//!
//! A scale that is twice as large rounds to the same relative steps, so one octave holds all that can
//! be chosen: where in it the weights lie decides how many of them are just above a power of two, where
//! steps are coarse. Scales below the first clip the largest weight. Errors are weighed by the mean
//! squares of the inputs, where these are known. Scales are f32.

use pelton_kernels::codes::{e4m3, e5m2};

use super::gptq::{self, Factor, Levels};
use super::threads::for_chunks;
use super::{Group, Result, SolveError, Weights};

/// The largest number of E4M3.
pub(crate) const LARGEST: f32 = 448.0;

/// Powers of `2^(1/8)` that are tried.
const TRIED: std::ops::RangeInclusive<i8> = -3..=7;

/// A type of 8-bit floats.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Kind {
    /// Three bits of mantissa, up to 448; without infinities.
    #[default]
    E4m3,
    /// Two bits of mantissa, up to 57,344.
    E5m2,
}

impl Kind {
    /// The largest finite number.
    pub fn largest(self) -> f32 {
        match self {
            Self::E4m3 => LARGEST,
            Self::E5m2 => 57_344.0,
        }
    }

    /// The number of a code.
    pub fn number(self, code: u8) -> f32 {
        match self {
            Self::E4m3 => e4m3(code),
            Self::E5m2 => e5m2(code),
        }
    }

    /// The code of the number nearest to `x`, ties to even; larger magnitudes become the largest.
    pub(crate) fn nearest(self, x: f32) -> u8 {
        // Bits of the mantissa, and the exponent of the smallest normal number.
        let (mantissa, least) = match self {
            Self::E4m3 => (3, -6),
            Self::E5m2 => (2, -14),
        };
        let sign = if x.is_sign_negative() { 0x80 } else { 0 };
        let size = x.abs().min(self.largest());
        if size < 2_f32.powi(least) {
            return sign | (size * 2_f32.powi(mantissa - least)).round_ties_even() as u8;
        }
        let (bits, dropped) = (size.to_bits(), 23 - mantissa);
        let rounded = bits + (1 << (dropped - 1)) - 1 + (bits >> dropped & 1);
        sign | ((rounded >> dropped) - (((126 + least) as u32) << mantissa)) as u8
    }
}

/// The code of the number of E4M3 nearest to `x`.
pub(crate) fn nearest(x: f32) -> u8 {
    Kind::E4m3.nearest(x)
}

/// A type of floats, and the weights that share a scale.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Layout {
    /// The type.
    pub kind: Kind,
    /// The weights that share a scale; inputs stand for a block of as many outputs, and the last
    /// blocks of a matrix may be smaller.
    pub group: Group,
}

impl Layout {
    /// Outputs and inputs that share a scale.
    pub fn block(self, [n, k]: [usize; 2]) -> [usize; 2] {
        match self.group {
            Group::Tensor => [n, k],
            Group::Row => [1, k],
            Group::Inputs(width) => [width, width],
        }
        .map(|len| len.max(1))
    }
}

/// A matrix of 8-bit floats.
#[derive(Clone, Debug, PartialEq)]
pub struct Fp8 {
    /// Outputs and inputs.
    pub shape: [usize; 2],
    /// Type and blocks.
    pub layout: Layout,
    /// `[n, k]`.
    pub codes: Vec<u8>,
    /// One per block, `[n / block[0], k / block[1]]`, rounded up.
    pub scales: Vec<f32>,
}

/// Rounds every weight to the nearest number of its block; `importance` weighs the squared errors of
/// each input's weights, where something is known of the inputs.
///
/// # Errors
///
/// A weight that is no number.
///
/// # Panics
///
/// When a block has no outputs or no inputs, or `importance` is of another number of inputs.
pub fn solve(
    weights: Weights<'_>,
    layout: Layout,
    importance: Option<&[f32]>,
    n_threads: usize,
) -> Result<Fp8> {
    let scaled = Scaled::new(weights, layout, importance, n_threads)?;
    let [n, k] = weights.shape;
    let mut codes = vec![0_u8; n * k];
    const ROWS: usize = 16;
    for_chunks(&mut codes, ROWS * k.max(1), n_threads, |chunk, codes| {
        let first = chunk * ROWS * k;
        for (i, code) in codes.iter_mut().enumerate() {
            let at = first + i;
            *code = layout.kind.nearest(weights.values[at] / scaled.scale(at / k, at % k));
        }
        Ok::<(), SolveError>(())
    })?;
    Ok(Fp8 { shape: weights.shape, layout, codes, scales: scaled.scales })
}

/// Rounds one input after the other, and makes each error good in those that follow; scales as
/// [`solve`] chooses them.
///
/// # Errors
///
/// A weight that is no number.
///
/// # Panics
///
/// As [`solve`], and when the factor is of another number of inputs.
pub fn compensated(
    weights: Weights<'_>,
    layout: Layout,
    importance: &[f32],
    factor: &Factor,
    n_threads: usize,
) -> Result<Fp8> {
    let scaled = Scaled::new(weights, layout, Some(importance), n_threads)?;
    let codes = gptq::round_rows(weights, &scaled, factor, n_threads)?.codes;
    Ok(Fp8 { shape: weights.shape, layout, codes, scales: scaled.scales })
}

/// Scales that are chosen.
struct Scaled {
    kind: Kind,
    /// Outputs and inputs that share a scale.
    block: [usize; 2],
    /// Scales of a row of blocks.
    n_columns: usize,
    scales: Vec<f32>,
}

impl Scaled {
    fn new(
        weights: Weights<'_>,
        layout: Layout,
        importance: Option<&[f32]>,
        n_threads: usize,
    ) -> Result<Self> {
        weights.check_finite()?;
        let block = layout.block(weights.shape);
        let ([n, k], [rows, columns]) = (weights.shape, block);
        assert!(importance.is_none_or(|importance| importance.len() == k), "one for each input");
        let n_columns = k.div_ceil(columns);
        let mut scales = vec![1.0_f32; n.div_ceil(rows) * n_columns];
        // One scale for all is sought by all threads.
        let (n_threads, n_seekers) = if scales.len() > 1 { (n_threads, 1) } else { (1, n_threads) };
        for_chunks(&mut scales, 1, n_threads, |at, scale| {
            let (row, column) = (at / n_columns * rows, at % n_columns * columns);
            let (row_end, width) = (n.min(row + rows), k.min(column + columns) - column);
            let own: Vec<&[f32]> =
                (row..row_end).map(|row| &weights.values[row * k + column..][..width]).collect();
            let importance = importance.map(|importance| &importance[column..][..width]);
            scale[0] = best_scale(layout.kind, &own, importance, n_seekers);
            Ok::<(), SolveError>(())
        })?;
        Ok(Self { kind: layout.kind, block, n_columns, scales })
    }

    fn scale(&self, row: usize, column: usize) -> f32 {
        let [rows, columns] = self.block;
        self.scales[row / rows * self.n_columns + column / columns]
    }
}

impl Levels for Scaled {
    type Step = f32;

    fn group(&self, k: usize) -> usize {
        self.block[1].min(k)
    }

    fn step(&self, row: usize, first: usize, _: &[f32], _: &[f32]) -> Result<f32> {
        Ok(self.scale(row, first))
    }

    fn round(&self, scale: f32, weight: f32) -> (u8, f32) {
        let code = self.kind.nearest(weight / scale);
        (code, scale * self.kind.number(code))
    }
}

/// The scale with the least weighted squared error; 1 for zeros.
fn best_scale(kind: Kind, rows: &[&[f32]], importance: Option<&[f32]>, n_threads: usize) -> f32 {
    let largest = rows.iter().copied().flatten().fold(0.0_f32, |most, w| most.max(w.abs()));
    if largest == 0.0 {
        return 1.0;
    }
    struct Tried {
        scale: f32,
        error: f64,
    }
    let tried = |power: i8| {
        let stretch = (f32::from(power) / 8.0).exp2();
        let scale = (largest / kind.largest() * stretch).max(f32::MIN_POSITIVE);
        Tried { scale, error: 0.0 }
    };
    let mut tried: Vec<Tried> = TRIED.map(tried).collect();
    let measured = for_chunks(&mut tried, 1, n_threads, |_, tried| {
        let Tried { scale, error } = &mut tried[0];
        for (j, w) in rows.iter().flat_map(|row| row.iter().enumerate()) {
            let delta = *scale * kind.number(kind.nearest(w / *scale)) - w;
            let weight = importance.map_or(1.0, |importance| f64::from(importance[j]));
            *error += weight * f64::from(delta).powi(2);
        }
        Ok::<(), std::convert::Infallible>(())
    });
    let Ok(()) = measured;
    let best = tried.iter().min_by(|a, b| a.error.total_cmp(&b.error));
    best.expect("invariant: some are tried").scale
}

impl Fp8 {
    /// The weights that the codes stand for, `[n, k]`.
    pub fn weights(&self) -> Vec<f32> {
        let (kind, [_, k]) = (self.layout.kind, self.shape);
        let [rows, columns] = self.layout.block(self.shape);
        let n_columns = k.div_ceil(columns);
        let weight = |(at, code): (usize, &u8)| {
            self.scales[at / k / rows * n_columns + at % k / columns] * kind.number(*code)
        };
        self.codes.iter().enumerate().map(weight).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_code_is_the_one_that_a_search_finds() {
        for (kind, last) in [(Kind::E4m3, 0x7e), (Kind::E5m2, 0x7b)] {
            let numbers: Vec<(u8, f32)> =
                (0..=last).map(|code: u8| (code, kind.number(code))).collect();
            assert_eq!(numbers.last().map(|(_, y)| *y), Some(kind.largest()));
            let mut x = 1e-6_f32;
            while x < 1.3 * kind.largest() {
                let found = kind.nearest(x);
                let far = |y: f32| (f64::from(y) - f64::from(x.min(kind.largest()))).abs();
                let least = numbers.iter().map(|(_, y)| far(*y)).fold(f64::INFINITY, f64::min);
                assert_eq!(far(kind.number(found)), least, "{x}");
                assert_eq!(kind.nearest(-x), found | 0x80);
                x *= 1.0037;
            }
            for (code, y) in numbers {
                assert_eq!(kind.nearest(y), code);
            }
        }
        // Halfway between 1 and 1.125, and between 1.125 and 1.25.
        assert_eq!([nearest(1.0625), nearest(1.1875)].map(e4m3), [1.0, 1.25]);
    }

    #[test]
    fn scales_are_those_of_the_least_weighted_error() {
        let (n, k) = (8, 64);
        let value = |i: usize| ((i * 7919 % 1009) as f32 / 504.5 - 1.0).powi(3);
        let values: Vec<f32> = (0..n * k).map(value).collect();
        let weights = Weights { shape: [n, k], values: &values };
        let layout = Layout { kind: Kind::E4m3, group: Group::Row };
        let importance: Vec<f32> = (0..k).map(|j| if j % 9 == 4 { 50.0 } else { 0.1 }).collect();
        let error = |weights: &[f32], importance: &[f32]| -> f64 {
            let pairs = weights.iter().zip(&values).enumerate();
            pairs.map(|(i, (a, b))| f64::from(importance[i % k] * (a - b).powi(2))).sum()
        };
        // The largest weight becomes the largest number.
        let plain: Vec<f32> = values
            .chunks(k)
            .flat_map(|row| {
                let scale = row.iter().fold(0.0_f32, |most, w| most.max(w.abs())) / LARGEST;
                row.iter().map(move |w| scale * e4m3(nearest(w / scale)))
            })
            .collect();
        let even = vec![1.0; k];
        let own = solve(weights, layout, None, 1).expect("rounds").weights();
        let weighed = solve(weights, layout, Some(&importance), 1).expect("rounds").weights();
        assert!(error(&own, &even) < 0.95 * error(&plain, &even));
        assert!(error(&weighed, &importance) < 0.95 * error(&own, &importance));
    }
}
