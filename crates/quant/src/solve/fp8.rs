//! Floats of 8 bits, E4M3, with a scale per output or per block.
//!
//! ```text
//! scale = max|w| / 448       of an output, or of a block of outputs by inputs
//! w     = scale * e4m3(code)
//! ```
//!
//! Scales are f32, and the largest weight of each is the largest finite code, so nothing is clipped.

use pelton_kernels::codes::e4m3;

use super::threads::for_chunks;
use super::{Result, SolveError, Weights};

/// The largest number of E4M3.
pub(crate) const LARGEST: f32 = 448.0;

/// A matrix of 8-bit floats.
#[derive(Clone, Debug, PartialEq)]
pub struct Fp8 {
    /// Outputs and inputs.
    pub shape: [usize; 2],
    /// Outputs and inputs that share a scale; the last blocks of a matrix may be smaller.
    pub block: [usize; 2],
    /// `[n, k]`.
    pub codes: Vec<u8>,
    /// `[n / block[0], k / block[1]]`, rounded up.
    pub scales: Vec<f32>,
}

/// Rounds every weight to the nearest number of its block.
///
/// # Errors
///
/// A weight that is no number.
///
/// # Panics
///
/// When a block has no outputs or no inputs.
pub fn solve(weights: Weights<'_>, block: [usize; 2], n_threads: usize) -> Result<Fp8> {
    weights.check_finite()?;
    let [n, k] = weights.shape;
    let [rows, columns] = block;
    let n_columns = k.div_ceil(columns);
    let mut scales = vec![0.0_f32; n.div_ceil(rows) * n_columns];
    for (at, w) in weights.values.iter().enumerate() {
        let scale = &mut scales[at / k / rows * n_columns + at % k / columns];
        *scale = scale.max(w.abs());
    }
    for scale in &mut scales {
        *scale = if *scale == 0.0 { 1.0 } else { (*scale / LARGEST).max(f32::MIN_POSITIVE) };
    }
    let mut codes = vec![0_u8; n * k];
    const ROWS: usize = 16;
    for_chunks(&mut codes, ROWS * k.max(1), n_threads, |chunk, codes| {
        let first = chunk * ROWS * k;
        for (i, code) in codes.iter_mut().enumerate() {
            let at = first + i;
            let scale = scales[at / k / rows * n_columns + at % k / columns];
            *code = nearest(weights.values[at] / scale);
        }
        Ok::<(), SolveError>(())
    })?;
    Ok(Fp8 { shape: weights.shape, block, codes, scales })
}

impl Fp8 {
    /// The weights that the codes stand for, `[n, k]`.
    pub fn weights(&self) -> Vec<f32> {
        let ([_, k], [rows, columns]) = (self.shape, self.block);
        let n_columns = k.div_ceil(columns);
        let weight = |(at, code): (usize, &u8)| {
            self.scales[at / k / rows * n_columns + at % k / columns] * e4m3(*code)
        };
        self.codes.iter().enumerate().map(weight).collect()
    }
}

/// The code of the number nearest to `x`, ties to even; larger magnitudes become the largest.
pub(crate) fn nearest(x: f32) -> u8 {
    let sign = if x.is_sign_negative() { 0x80 } else { 0 };
    let size = x.abs().min(LARGEST);
    // Below 2^-6 numbers are multiples of 2^-9.
    if size < 2_f32.powi(-6) {
        return sign | (size * 512.0).round_ties_even() as u8;
    }
    let bits = size.to_bits();
    let rounded = bits + 0x7_ffff + (bits >> 20 & 1);
    sign | ((rounded >> 20) - (120 << 3)) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_code_is_the_one_that_a_search_finds() {
        let numbers: Vec<(u8, f32)> = (0..=0x7e).map(|code: u8| (code, e4m3(code))).collect();
        let mut x = 1e-4_f32;
        while x < 600.0 {
            let found = nearest(x);
            let far = |y: f32| (f64::from(y) - f64::from(x.min(LARGEST))).abs();
            let least = numbers.iter().map(|(_, y)| far(*y)).fold(f64::INFINITY, f64::min);
            assert_eq!(far(e4m3(found)), least, "{x}");
            assert_eq!(nearest(-x), found | 0x80);
            x *= 1.0037;
        }
        for (code, y) in numbers {
            assert_eq!(nearest(y), code);
        }
        // Halfway between 1 and 1.125, and between 1.125 and 1.25.
        assert_eq!([nearest(1.0625), nearest(1.1875)].map(e4m3), [1.0, 1.25]);
    }
}
