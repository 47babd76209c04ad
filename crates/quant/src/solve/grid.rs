//! The values that a group of weights can take, and how a grid is fitted to weights.
//!
//! ```text
//! symmetric    zero point in the middle: scale = max|w| / (levels / 2), codes -levels/2 ..
//! asymmetric   scale = (max - min) / (levels - 1), zero point the code of 0, from 1 up
//! ```
//!
//! A zero point of 0 is avoided: files of GPTQ store zero points less one, and readers differ about
//! what that makes of 0.

use std::fmt;
use std::str::FromStr;

use half::f16;

use super::{Result, SolveError};
use crate::fit::nearest;

/// The weights that share a scale.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Group {
    /// All of a matrix.
    Tensor,
    /// All of an output.
    Row,
    /// This number of inputs of an output; a square of as many outputs for 8-bit floats.
    Inputs(usize),
}

impl Group {
    /// Inputs that share a scale in rows of `k`.
    pub fn inputs(self, k: usize) -> usize {
        match self {
            Self::Tensor | Self::Row => k,
            Self::Inputs(n) => n,
        }
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tensor => f.write_str("tensor"),
            Self::Row => f.write_str("row"),
            Self::Inputs(n) => n.fmt(f),
        }
    }
}

impl FromStr for Group {
    type Err = &'static str;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        match text {
            "tensor" => Ok(Self::Tensor),
            "row" => Ok(Self::Row),
            _ => match text.parse() {
                Ok(n) if n > 0 => Ok(Self::Inputs(n)),
                _ => Err("expected a number, `row` or `tensor`"),
            },
        }
    }
}

/// The grid of a quantization: bits, inputs of a group, and whether groups have a zero point.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Grid {
    /// Bits of a code, 2 to 8.
    pub bits: usize,
    /// The weights that share a scale.
    pub group: Group,
    /// Whether the zero point is the middle of the codes.
    pub symmetric: bool,
}

/// The scale and zero point of one group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Step {
    /// A value of f16.
    pub(super) scale: f32,
    pub(super) zero: u8,
}

/// Fractions of the range that a search tries.
const N_SHRINKS: usize = 40;
/// The smallest of these.
const LEAST_SHRINK: f32 = 0.4;

impl Grid {
    /// The largest code.
    pub(super) fn most(&self) -> u8 {
        ((1_u16 << self.bits) - 1) as u8
    }

    /// The grid whose range is that of the weights; `row` is named in errors.
    pub(super) fn fit(&self, weights: impl Iterator<Item = f32>, row: usize) -> Result<Step> {
        let (low, high) = range(weights);
        self.step(low, high).ok_or(SolveError::Scale { row })
    }

    /// The grid with the least weighted squared error among ranges of different widths.
    pub(super) fn search(&self, weights: &[f32], importance: &[f32], row: usize) -> Result<Step> {
        let (low, high) = range(weights.iter().copied());
        let mut best = (f64::INFINITY, self.step(low, high).ok_or(SolveError::Scale { row })?);
        for i in 0..=N_SHRINKS {
            let shrink = 1.0 - (1.0 - LEAST_SHRINK) * i as f32 / N_SHRINKS as f32;
            let Some(step) = self.step(low * shrink, high * shrink) else { continue };
            let error = self.error(step, weights, importance);
            if error < best.0 {
                best = (error, step);
            }
        }
        Ok(best.1)
    }

    /// Scale and zero point for weights from `low` to `high`, which include 0; `None` where the scale
    /// is beyond f16.
    pub(super) fn step(&self, low: f32, high: f32) -> Option<Step> {
        let most = f32::from(self.most());
        let (scale, middle) = match self.symmetric {
            true => (2.0 * low.abs().max(high) / most, Some((most + 1.0) / 2.0)),
            false => ((high - low) / most, None),
        };
        if scale == 0.0 {
            // All weights are zero.
            return Some(Step { scale: 1.0, zero: middle.unwrap_or(1.0) as u8 });
        }
        let scale = match in_f16(scale) {
            0.0 => f16::from_bits(1).to_f32(),
            scale => scale,
        };
        if scale.is_infinite() {
            return None;
        }
        let Some(middle) = middle else {
            let zero = nearest(-low / scale, 0.0, most);
            if zero >= 1.0 {
                return Some(Step { scale, zero: zero as u8 });
            }
            // One code less for the weights above zero.
            let wider = in_f16(high / (most - 1.0)).max(scale);
            return Some(Step { scale: wider, zero: 1 }).filter(|step| step.scale.is_finite());
        };
        Some(Step { scale, zero: middle as u8 })
    }

    /// `Σ importance (w - q)²` of rounded weights. A product with the inverse of the scale stands
    /// for the division, so that a weight between two codes may count as either.
    pub(super) fn error(&self, step: Step, weights: &[f32], importance: &[f32]) -> f64 {
        let (zero, most) = (f32::from(step.zero), f32::from(self.most()));
        let inverse = 1.0 / step.scale;
        in_lanes(weights, importance, |w, importance| {
            let code = nearest(w * inverse + zero, 0.0, most);
            importance * (step.scale * (code - zero) - w).powi(2)
        })
    }

    /// The code of a weight and the value that it stands for.
    pub(super) fn round(&self, step: Step, weight: f32) -> (u8, f32) {
        let zero = f32::from(step.zero);
        let code = nearest(weight / step.scale + zero, 0.0, f32::from(self.most()));
        (code as u8, step.scale * (code - zero))
    }
}

/// A number as f16 stores it. Between the ends of its range a carry into the last of ten bits
/// rounds it, where the library asks the processor first: a search tries a hundred scales for each
/// group.
fn in_f16(x: f32) -> f32 {
    /// Bits that f16 lacks.
    const LACKING: u32 = 13;
    if !(6.2e-5..65_000.0).contains(&x) {
        return f16::from_f32(x).to_f32();
    }
    let bits = x.to_bits();
    let carry = (1 << (LACKING - 1)) - 1 + ((bits >> LACKING) & 1);
    f32::from_bits((bits + carry) >> LACKING << LACKING)
}

/// The sum of a function of pairs, in lanes that vector units add.
#[inline(always)]
pub(super) fn in_lanes(a: &[f32], b: &[f32], f: impl Fn(f32, f32) -> f32) -> f64 {
    const LANES: usize = 8;
    let (a, rest_of_a) = a.as_chunks::<LANES>();
    let (b, rest_of_b) = b.as_chunks::<LANES>();
    let mut sums = [0.0_f32; LANES];
    for (a, b) in a.iter().zip(b) {
        for (i, sum) in sums.iter_mut().enumerate() {
            *sum += f(a[i], b[i]);
        }
    }
    let rest: f32 = rest_of_a.iter().zip(rest_of_b).map(|(a, b)| f(*a, *b)).sum();
    sums.into_iter().map(f64::from).sum::<f64>() + f64::from(rest)
}

/// The least and the greatest weight, 0 included.
fn range(weights: impl Iterator<Item = f32>) -> (f32, f32) {
    weights.fold((0.0, 0.0), |(low, high), w| (w.min(low), w.max(high)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(bits: usize, symmetric: bool) -> Grid {
        Grid { bits, group: Group::Row, symmetric }
    }

    #[test]
    fn every_weight_in_the_range_is_within_half_a_step() {
        for (bits, symmetric) in
            [(2, true), (2, false), (3, false), (4, true), (4, false), (8, false)]
        {
            let grid = grid(bits, symmetric);
            for (low, high) in [(-1.0, 1.0), (-0.2, 3.0), (0.5, 3.0), (-2.0, -0.5), (-1e-7, 1e-7)] {
                let weights: Vec<f32> =
                    (0..=50).map(|i| low + (high - low) * i as f32 / 50.0).collect();
                let step = grid.fit(weights.iter().copied(), 0).expect("a scale");
                assert!(step.zero >= 1, "{bits} {symmetric} {low} {high}");
                for w in weights {
                    let (code, value) = grid.round(step, w);
                    assert!(code <= grid.most());
                    // The largest weight of a symmetric range lies half a step beyond the last code.
                    // A scale near zero is a multiple of the smallest f16, half of which it may lack.
                    let lacking = f32::from(half::f16::from_bits(1)) * 0.5 * f32::from(grid.most());
                    let bound = step.scale * 0.5 * 1.01 + w.abs() * 1e-3 + lacking;
                    assert!((value - w).abs() <= bound, "{bits} {symmetric}: {w} became {value}");
                }
            }
        }
    }

    #[test]
    fn numbers_are_rounded_to_f16_as_the_library_does() {
        let all = (0..=u32::MAX).step_by(65_521).map(f32::from_bits);
        // Ties, and what is next to them.
        let halves = (0..0x7c00_u16).map(|bits| {
            let [a, b] = [bits, bits + 1].map(|bits| f16::from_bits(bits).to_f32());
            (a + b) / 2.0
        });
        let near = halves.flat_map(|x| [x.next_down(), x, x.next_up()]);
        for x in all.chain(near).filter(|x| !x.is_nan()) {
            assert_eq!(in_f16(x).to_bits(), f16::from_f32(x).to_f32().to_bits(), "{x:e}");
        }
    }

    #[test]
    fn zeros_stay_zeros_and_huge_weights_are_refused() {
        for symmetric in [true, false] {
            let grid = grid(4, symmetric);
            let step = grid.fit([0.0; 3].into_iter(), 7).expect("a scale");
            assert_eq!(grid.round(step, 0.0).1, 0.0);
            let fitted = grid.fit([1e-3, -2e-3].into_iter(), 7).expect("a scale");
            assert_eq!(grid.round(fitted, 0.0).1, 0.0, "0 is on the grid");
            let error = grid.fit([3e38, -3e38].into_iter(), 7).expect_err("beyond f16");
            assert_eq!(error, SolveError::Scale { row: 7 });
        }
    }

    #[test]
    fn a_search_gives_up_an_outlier_that_does_not_matter() {
        let grid = grid(3, true);
        let mut weights: Vec<f32> = (0..31).map(|i| (i as f32 * 0.7).sin()).collect();
        weights.push(4.0);
        let error = |step: Step, importance: &[f32]| -> f64 {
            let errors = weights.iter().zip(importance);
            errors.map(|(w, i)| f64::from(i * (w - grid.round(step, *w).1).powi(2))).sum()
        };
        let mut importance = vec![1.0; 32];
        importance[31] = 0.01;
        let found = grid.search(&weights, &importance, 0).expect("a scale");
        let plain = grid.fit(weights.iter().copied(), 0).expect("a scale");
        assert!(error(found, &importance) < 0.5 * error(plain, &importance));
    }
}
