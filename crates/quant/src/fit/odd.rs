//! `w = d * unit * (2 s + 1) * v` where whole groups of `v` are rounded together.
//!
//! ```text
//! for each of 14 starts:   v = round(w / scale), scale from 0.5 to 1.15 of amax / top
//!                          scale = sum u w v / sum u v v
//! ```
//! Then the block: `d` such that the largest scale is the largest odd multiple of it, and for each
//! scale the nearest odd multiple or one of its neighbours, whichever errs least once weights are
//! rounded again.
//!
//! The rounding is a table look-up and not a search among all points: each weight is first rounded
//! alone, and the point nearest to the rounded weights is taken. On Gaussian rows that costs some
//! hundredths of the error, and saves a factor of hundreds in time.

use half::f16;

use super::{HUGE, TINY, nearest, step_for};

/// First start, distance and number of starts, as parts of `amax / top`.
const FIRST: f32 = 0.5;
const STEP: f32 = 0.05;
const N_STARTS: usize = 14;

/// A scale is at most this much larger than that of plain rounding.
const WIDEST: f32 = 1.5;

/// Most weights that share a scale.
const MOST: usize = 32;

/// How weights are rounded together.
pub(crate) struct Rounding<'a> {
    /// The largest value.
    pub(crate) top: f32,
    /// The largest `s`.
    pub(crate) s_max: u8,
    /// Writes the values near scaled weights.
    pub(crate) values: &'a dyn Fn(&[f32], &mut [f32]),
}

/// `d`, and the `s` of each `scale_len` weights.
pub(crate) fn fit_odd_scales<const N: usize>(
    weights: &[f32; N],
    scale_len: usize,
    unit: f32,
    rounding: &Rounding<'_>,
) -> (f16, [u8; 16]) {
    let weights = weights.map(|w| w.clamp(-HUGE, HUGE));
    let subs = || weights.chunks(scale_len).enumerate();
    let mut wished = [0.0; 16];
    subs().for_each(|(j, sub)| wished[j] = fit_scale(sub, rounding));
    let largest = wished.iter().fold(0.0, |max: f32, &scale| max.max(scale));
    let s_max = f32::from(rounding.s_max);
    let d = step_for(largest / unit, 2.0 * s_max + 1.0);
    let step = d.to_f32() * unit;
    let mut scales = [0; 16];
    for (j, sub) in subs() {
        let middle = if step > 0.0 { (wished[j] / step - 1.0) * 0.5 } else { 0.0 };
        let middle = nearest(middle, 0.0, s_max);
        let mut least = f32::INFINITY;
        for s in [middle, middle - 1.0, middle + 1.0] {
            let s = nearest(s, 0.0, s_max);
            let scale = step * (2.0 * s + 1.0);
            let error = Sums::of(sub, scale, rounding).error(scale);
            if error < least {
                (scales[j], least) = (s as u8, error);
            }
        }
    }
    (d, scales)
}

fn fit_scale(weights: &[f32], rounding: &Rounding<'_>) -> f32 {
    let amax = weights.iter().fold(0.0_f32, |amax, w| amax.max(w.abs()));
    if amax <= TINY {
        return 0.0;
    }
    let plain = amax / rounding.top;
    let (mut best, mut most) = (plain, 0.0);
    for start in 0..N_STARTS {
        let sums = Sums::of(weights, plain * (FIRST + STEP * start as f32), rounding);
        let scale = sums.wv / sums.vv;
        if scale > 0.0 && scale <= WIDEST * plain && scale * sums.wv > most {
            (best, most) = (scale, scale * sums.wv);
        }
    }
    best
}

/// Sums over the weights `w` of a group and their values `v`, weighted with `u = rms + |w|`.
struct Sums {
    ww: f32,
    wv: f32,
    vv: f32,
}

impl Sums {
    fn of(weights: &[f32], scale: f32, rounding: &Rounding<'_>) -> Self {
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        let (mut scaled, mut values) = ([0.0; MOST], [0.0; MOST]);
        let (scaled, values) = (&mut scaled[..weights.len()], &mut values[..weights.len()]);
        scaled.iter_mut().zip(weights).for_each(|(x, w)| *x = w * inverse);
        (rounding.values)(scaled, values);
        let energy: f32 = weights.iter().map(|w| w * w).sum();
        let rms = (energy / weights.len() as f32).sqrt();
        let mut sums = Self { ww: 0.0, wv: 0.0, vv: 0.0 };
        for (&w, &mut v) in weights.iter().zip(values) {
            let u = rms + w.abs();
            sums.ww += u * w * w;
            sums.wv += u * w * v;
            sums.vv += u * v * v;
        }
        sums
    }

    /// The weighted error with a scale.
    fn error(&self, scale: f32) -> f32 {
        self.ww - scale * (2.0 * self.wv - scale * self.vv)
    }
}
