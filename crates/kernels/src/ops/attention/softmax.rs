//! From the scores of one chunk to weights.
//!
//! ```text
//! s[t] = cap · tanh(s[t] / cap)           where there is a cap
//! m    = max s                            a NaN does not enter it, but enters z
//! e[t] = exp(s[t] - m)                    in place of the scores; of bf16 and fp8 values, as a bf16
//! z    = Σ e[t]                           position t in lane t % 16, then by halving
//! ```
//!
//! About 18 operations per position and flat row, 14 of bf16 values, 15 more with a cap: as much as
//! the dot product of a head of 7 to 16 elements. Masked positions of a partly visible sixteen are
//! `-inf` here, and their weights 0, which tiles multiply (`tiles.rs`).
//!
//! Largest scores and weights are tasks of their own, so that those of several lines are computed
//! at the same time: within a line, each waits for the last lane of the one before.

use super::merge::reference;
use crate::simd::math::{exp, exp_bf16, exp_near_bf16, tanh};
use crate::simd::{LANES, Simd, Task};

/// Masks the scores of a line that are not in the columns `[low, high)`, applies the cap, and
/// returns the largest score.
pub(super) struct Largest<'a> {
    pub(super) softcap: Option<f32>,
    pub(super) line: &'a mut [f32],
    pub(super) low: usize,
    pub(super) high: usize,
}

impl<S: Simd> Task<S> for Largest<'_> {
    type Out = f32;

    #[inline(always)]
    fn run(self, s: S) -> f32 {
        let Self { softcap, line, low, high } = self;
        if low >= high {
            return f32::NEG_INFINITY;
        }
        let line = whole(line, low, high);
        mask(line, low, high, f32::NEG_INFINITY);
        let blocks = line.as_chunks_mut::<LANES>().0;
        if let Some(cap) = softcap {
            let (cap, inverse) = (s.splat(cap), s.splat(1.0 / cap));
            for block in &mut *blocks {
                s.store(s.mul(cap, tanh(s, s.mul(s.load(block), inverse))), block);
            }
            // The cap made the masked ones finite.
            mask(blocks.as_flattened_mut(), low, high, f32::NEG_INFINITY);
        }
        let mut max = s.splat(f32::NEG_INFINITY);
        for block in &*blocks {
            // A NaN does not enter the maximum; it enters the sum of the weights.
            max = s.max(s.load(block), max);
        }
        s.largest(max)
    }
}

/// How precise weights are.
pub(super) trait Precision {
    /// Whether a weight is never 0.
    const NEVER_ZERO: bool;

    /// `eˣ` for `x <= 0`.
    fn exp<S: Simd>(&self, s: S, x: S::F) -> S::F;
}

/// Weights that are floats.
pub(super) struct Whole;

/// Weights that are rounded to bf16.
pub(super) struct Rounded;

/// Weights that are rounded to bf16 once they are multiplied by the scales of values.
pub(super) struct BeforeScales;

impl Precision for Whole {
    const NEVER_ZERO: bool = false;

    #[inline(always)]
    fn exp<S: Simd>(&self, s: S, x: S::F) -> S::F {
        exp(s, x)
    }
}

impl Precision for Rounded {
    const NEVER_ZERO: bool = true;

    #[inline(always)]
    fn exp<S: Simd>(&self, s: S, x: S::F) -> S::F {
        exp_bf16(s, x)
    }
}

impl Precision for BeforeScales {
    const NEVER_ZERO: bool = true;

    #[inline(always)]
    fn exp<S: Simd>(&self, s: S, x: S::F) -> S::F {
        exp_near_bf16(s, x)
    }
}

/// Turns scores that [`Largest`] has seen into `exp(score - max)`, and returns their sum.
pub(super) struct Weights<'a, P> {
    pub(super) line: &'a mut [f32],
    pub(super) low: usize,
    pub(super) high: usize,
    pub(super) max: f32,
    pub(super) precision: P,
}

impl<S: Simd, P: Precision> Task<S> for Weights<'_, P> {
    type Out = f32;

    #[inline(always)]
    fn run(self, s: S) -> f32 {
        let Self { line, low, high, max, precision } = self;
        if low >= high {
            return 0.0;
        }
        let line = whole(line, low, high);
        let from = s.splat(reference(max));
        let mut sum = s.splat(0.0);
        // Where no score is above -inf, weights must be 0.
        if !P::NEVER_ZERO || max == f32::NEG_INFINITY {
            for block in line.as_chunks_mut::<LANES>().0 {
                let e = exp(s, s.sub(s.load(block), from));
                s.store(e, block);
                sum = s.add(sum, e);
            }
            return s.sum(sum);
        }
        if low.is_multiple_of(LANES) && high.is_multiple_of(LANES) {
            for block in line.as_chunks_mut::<LANES>().0 {
                let e = precision.exp(s, s.sub(s.load(block), from));
                s.store(e, block);
                sum = s.add(sum, e);
            }
            return s.sum(sum);
        }
        for block in line.as_chunks_mut::<LANES>().0 {
            s.store(precision.exp(s, s.sub(s.load(block), from)), block);
        }
        mask(line, low, high, 0.0);
        for block in line.as_chunks::<LANES>().0 {
            sum = s.add(sum, s.load(block));
        }
        s.sum(sum)
    }
}

/// The sixteens of the chunk that hold the columns `[low, high)`.
#[inline(always)]
fn whole(line: &mut [f32], low: usize, high: usize) -> &mut [f32] {
    &mut line[LANES + low / LANES * LANES..LANES + high.next_multiple_of(LANES)]
}

/// Sets the columns in [`whole`] sixteens that are not in `[low, high)` to `value`.
#[inline(always)]
fn mask(line: &mut [f32], low: usize, high: usize, value: f32) {
    line[..low % LANES].fill(value);
    let end = line.len() - (high.next_multiple_of(LANES) - high);
    line[end..].fill(value);
}
