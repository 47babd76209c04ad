//! Rounding to -1, 0 and 1, for `TQ1_0` and `TQ2_0`.

use half::f16;

use crate::fit::saturating_half;

/// A weight of half the largest magnitude is as far from zero as from it; and the scale is rounded.
pub(super) const RELATIVE_ERROR: f32 = 0.5 + 1.0 / 2048.0;

/// The largest magnitude, and each weight's nearest multiple of it, plus one; halves away from
/// zero.
///
/// Weights that were trained to be ternary come out as they went in, which no scale between could
/// do.
pub(super) fn round<const N: usize>(weights: &[f32; N]) -> (f16, [u8; N]) {
    let amax = weights.iter().fold(0.0_f32, |amax, w| amax.max(w.abs()));
    let inverse = if amax == 0.0 { 0.0 } else { 1.0 / amax };
    let q = weights.map(|w| ((w * inverse).round().clamp(-1.0, 1.0) + 1.0) as u8);
    (saturating_half(amax), q)
}
