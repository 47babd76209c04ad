//! From the scores of one chunk to weights.
//!
//! ```text
//! s[t] = cap · tanh(s[t] / cap)           where there is a cap
//! m    = max s                            a NaN does not enter it, but enters z
//! e[t] = exp(s[t] - m)                    in place of the scores; of bf16 values, as a bf16
//! z    = Σ e[t]                           position t in lane t % 16, then by halving
//! ```
//!
//! About 25 operations per position and flat row, 40 with a cap: as much as the dot product of a
//! head of 12 to 20 elements. Masked positions of a partly visible sixteen are `-inf` here, and
//! their weights 0, which tiles multiply (`tiles.rs`).

use super::merge::reference;
use crate::simd::math::{exp, exp_bf16, tanh};
use crate::simd::{LANES, Simd, Task};

/// Turns the scores of the columns `[low, high)` of a line into `exp(score - max)`, and returns max
/// and sum.
/// `IS_BF16` rounds them to bf16, before they are summed up.
pub(super) struct Softmax<'a, const IS_BF16: bool> {
    pub(super) softcap: Option<f32>,
    pub(super) line: &'a mut [f32],
    pub(super) low: usize,
    pub(super) high: usize,
}

impl<S: Simd, const IS_BF16: bool> Task<S> for Softmax<'_, IS_BF16> {
    type Out = (f32, f32);

    #[inline(always)]
    fn run(self, s: S) -> (f32, f32) {
        let Self { softcap, line, low, high } = self;
        if low >= high {
            return (f32::NEG_INFINITY, 0.0);
        }
        // Whole lanes of the chunk, what is not visible in them masked.
        let (first, last) = (low / LANES * LANES, high.next_multiple_of(LANES));
        let line = &mut line[LANES + first..LANES + last];
        line[..low - first].fill(f32::NEG_INFINITY);
        line[high - first..].fill(f32::NEG_INFINITY);
        let blocks = line.as_chunks_mut::<LANES>().0;
        if let Some(cap) = softcap {
            let (cap, inverse) = (s.splat(cap), s.splat(1.0 / cap));
            for block in &mut *blocks {
                s.store(s.mul(cap, tanh(s, s.mul(s.load(block), inverse))), block);
            }
            // The cap made the masked ones finite.
            let line = blocks.as_flattened_mut();
            line[..low - first].fill(f32::NEG_INFINITY);
            line[high - first..].fill(f32::NEG_INFINITY);
        }
        let mut max = s.splat(f32::NEG_INFINITY);
        for block in &*blocks {
            // A NaN does not enter the maximum; it enters the sum below.
            max = s.max(s.load(block), max);
        }
        let max = s.largest(max);
        let from = s.splat(reference(max));
        let mut sum = s.splat(0.0);
        // A bf16 weight is never 0, but where no score is above -inf it must be.
        let is_bf16 = IS_BF16 && max > f32::NEG_INFINITY;
        let end = blocks.len() - 1;
        for (i, block) in blocks.iter_mut().enumerate() {
            let x = s.sub(s.load(block), from);
            let mut e = if is_bf16 { exp_bf16(s, x) } else { exp(s, x) };
            s.store(e, block);
            if is_bf16 && (i == 0 || i == end) {
                if i == 0 {
                    block[..low - first].fill(0.0);
                }
                if i == end {
                    block[LANES - (last - high)..].fill(0.0);
                }
                e = s.load(block);
            }
            sum = s.add(sum, e);
        }
        (max, s.sum(sum))
    }
}
