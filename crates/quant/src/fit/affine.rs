//! `w = scale * q - min` with `q` in `0..=q_max`, `scale >= 0`, `min >= 0`.
//!
//! ```text
//! low  = min(0, smallest w);  v = w - low        so that v >= 0, and v = scale * q + offset
//! for each of 17 starts:      q = nearest(v * (q_max + delta) / (high - low))
//!                             scale, offset by least squares; offset <= -low, for min >= 0
//! once more from the best:    q = nearest((v - offset) / scale), least squares
//! ```
//! Working on `v` keeps the sums sound where all weights lie close together and far from zero.
//!
//! Then the block: the scales and mins of its sub-blocks in steps of `d` and `d_min`, each with its
//! two neighbours; the pair of least error after rounding the weights again wins. Without the
//! neighbours Q5_K errs 3 % more on Gaussian rows.

use half::f16;

use super::{HUGE, TINY, importance, nearest, step_for, sum};

/// Starts on either side of plain rounding, and how far apart they are in units of `q`.
const N_STARTS: i32 = 8;

/// A sub-block's step is at most this much wider than that of plain rounding,
const WIDEST: f32 = 1.15;
/// and no weight is farther from the range than this part of a step.
const REACH: f32 = 0.75;

/// `S` sub-blocks of `N` weights: `w = d * scale * q - d_min * min`.
pub(crate) struct AffineBlock<const N: usize, const S: usize> {
    pub(crate) d: f16,
    pub(crate) d_min: f16,
    pub(crate) scales: [u8; S],
    pub(crate) mins: [u8; S],
    pub(crate) q: [[u8; N]; S],
}

/// Bound on the error of a weight where all inputs are equally important, as a part of the largest
/// magnitude in the block.
///
/// Before parameters are rounded a weight is within [`REACH`] of a step, itself [`WIDEST`] times a
/// plain one. Rounding them to integers moves the ends of the range by half of their steps, and
/// taking a neighbour by a whole one; the last term is for the steps' own rounding.
pub(crate) fn affine_error(q_max: f32, scale_max: f32) -> f32 {
    let range = 2.0 * WIDEST;
    let beyond = REACH * range / q_max;
    beyond + 1.5 * (range + 1.0 + beyond) / scale_max + 4.0 / 2048.0
}

/// Parameters of one sub-block before they are rounded.
#[derive(Clone, Copy)]
struct Line {
    scale: f32,
    min: f32,
}

/// Fits integers up to `q_max` to a block, whose inputs may differ in importance; its scales and mins
/// are integers up to `scale_max`.
pub(crate) fn fit_affine_block<const N: usize, const S: usize>(
    weights: &[[f32; N]; S],
    inputs: Option<&[[f32; N]; S]>,
    q_max: f32,
    scale_max: f32,
) -> AffineBlock<N, S> {
    let weights = weights.map(|sub| sub.map(|w| w.clamp(-HUGE, HUGE)));
    let lines: [Line; S] =
        std::array::from_fn(|j| fit_line(&weights[j], inputs.map(|inputs| &inputs[j]), q_max));
    let d = step_for(lines.iter().fold(0.0, |max, line| max.max(line.scale)), scale_max);
    let d_min = step_for(lines.iter().fold(0.0, |max, line| max.max(line.min)), scale_max);
    let mut block = AffineBlock { d, d_min, scales: [0; S], mins: [0; S], q: [[0; N]; S] };
    let steps = Line { scale: d.to_f32(), min: d_min.to_f32() };
    for (j, (sub, line)) in weights.iter().zip(lines).enumerate() {
        let (scale, min) =
            round_line(sub, inputs.map(|inputs| &inputs[j]), (line, steps), [q_max, scale_max]);
        let [d, offset] = [steps.scale * scale, steps.min * min];
        let inverse = if d > 0.0 { 1.0 / d } else { 0.0 };
        block.scales[j] = scale as u8;
        block.mins[j] = min as u8;
        block.q[j] = sub.map(|w| nearest((w + offset) * inverse, 0.0, q_max) as u8);
    }
    block
}

/// The integers near `line` that are best once weights are rounded with them.
fn round_line<const N: usize>(
    weights: &[f32; N],
    inputs: Option<&[f32; N]>,
    (line, steps): (Line, Line),
    [q_max, scale_max]: [f32; 2],
) -> (f32, f32) {
    let in_steps = |x: f32, step: f32| {
        let x = if step > 0.0 { x / step } else { 0.0 };
        nearest(x, 0.0, scale_max)
    };
    let middle = (in_steps(line.scale, steps.scale), in_steps(line.min, steps.min));
    let importance = importance(weights, inputs);
    let (mut best, mut least) = (middle, f32::INFINITY);
    for [scale_shift, min_shift] in NEIGHBOURS {
        let scale = nearest(middle.0 + scale_shift, 0.0, scale_max);
        let min = nearest(middle.1 + min_shift, 0.0, scale_max);
        let [d, offset] = [steps.scale * scale, steps.min * min];
        let inverse = if d > 0.0 { 1.0 / d } else { 0.0 };
        let [error] = sum(weights, &importance, |w, u| {
            let q = nearest((w + offset) * inverse, 0.0, q_max);
            let error = w + offset - d * q;
            [u * error * error]
        });
        if error < least {
            (best, least) = ((scale, min), error);
        }
    }
    best
}

/// The middle first, so that it wins among equals.
const NEIGHBOURS: [[f32; 2]; 9] = [
    [0.0, 0.0],
    [-1.0, 0.0],
    [1.0, 0.0],
    [0.0, -1.0],
    [0.0, 1.0],
    [-1.0, -1.0],
    [1.0, 1.0],
    [-1.0, 1.0],
    [1.0, -1.0],
];

/// The smallest weight, or zero; and the largest.
fn ends<const N: usize>(weights: &[f32; N]) -> [f32; 2] {
    weights.iter().fold([0.0, -HUGE], |[low, high], &w| [w.min(low), w.max(high)])
}

fn fit_line<const N: usize>(weights: &[f32; N], inputs: Option<&[f32; N]>, q_max: f32) -> Line {
    let [low, high] = ends(weights);
    let range = high - low;
    if range <= TINY {
        return Line { scale: 0.0, min: -low };
    }
    let problem = Problem::new(weights, inputs, (low, range), q_max);
    let plain = range / q_max;
    let mut best = problem.plain(plain);
    for start in -N_STARTS..=N_STARTS {
        let inverse = (q_max + start as f32 * problem.start_step()) / range;
        problem.improve(&mut best, inverse, 0.0);
    }
    let (scale, offset) = (best.scale, best.offset);
    problem.improve(&mut best, 1.0 / scale, -offset / scale);
    Line { scale: best.scale, min: -low - best.offset }
}

/// `v = scale * q + offset`, and how much of the energy of `v` that explains.
#[derive(Clone, Copy)]
struct Fit {
    scale: f32,
    offset: f32,
    gain: f32,
}

struct Problem<const N: usize> {
    v: [f32; N],
    importance: [f32; N],
    /// Sums of importance, and of it times `v`.
    s_1: f32,
    s_v: f32,
    largest_offset: f32,
    range: f32,
    q_max: f32,
    /// Whether weights far from the range are allowed (see the head of `fit`).
    is_weighted: bool,
}

impl<const N: usize> Problem<N> {
    fn new(
        weights: &[f32; N],
        inputs: Option<&[f32; N]>,
        (low, range): (f32, f32),
        q_max: f32,
    ) -> Self {
        let v = weights.map(|w| w - low);
        let importance = importance(weights, inputs);
        let [s_1, s_v] = sum(&v, &importance, |v, u| [u, u * v]);
        Self {
            v,
            importance,
            s_1,
            s_v,
            largest_offset: -low,
            range,
            q_max,
            is_weighted: inputs.is_some(),
        }
    }

    /// A tenth of a level; less when there are few.
    fn start_step(&self) -> f32 {
        (self.q_max / N_STARTS as f32 / 3.0).min(0.1)
    }

    /// Plain rounding over the whole range: the fit to beat.
    fn plain(&self, scale: f32) -> Fit {
        let [s_q, s_qq, s_qv] = self.sums(1.0 / scale, 0.0);
        let fit = Fit { scale, offset: 0.0, gain: 0.0 };
        Fit { gain: self.gain(fit, [s_q, s_qq, s_qv]), ..fit }
    }

    /// Takes the least-squares fit for `q = nearest(v * inverse + shift)` if it is better.
    fn improve(&self, best: &mut Fit, inverse: f32, shift: f32) {
        let [s_q, s_qq, s_qv] = self.sums(inverse, shift);
        let determinant = self.s_1 * s_qq - s_q * s_q;
        if determinant <= 0.0 {
            return;
        }
        let mut scale = (self.s_1 * s_qv - s_q * self.s_v) / determinant;
        let mut offset = (self.s_v - scale * s_q) / self.s_1;
        if offset > self.largest_offset {
            offset = self.largest_offset;
            scale = (s_qv - offset * s_q) / s_qq;
        }
        let fit = Fit { scale, offset, gain: 0.0 };
        let gain = self.gain(fit, [s_q, s_qq, s_qv]);
        if gain > best.gain && self.is_admissible(fit) {
            *best = Fit { gain, ..fit };
        }
    }

    fn sums(&self, inverse: f32, shift: f32) -> [f32; 3] {
        sum(&self.v, &self.importance, |v, u| {
            let q = nearest(v * inverse + shift, 0.0, self.q_max);
            let uq = u * q;
            [uq, uq * q, uq * v]
        })
    }

    /// The weighted energy of `v` less the weighted error.
    fn gain(&self, fit: Fit, [s_q, s_qq, s_qv]: [f32; 3]) -> f32 {
        let (scale, offset) = (fit.scale, fit.offset);
        scale * (2.0 * s_qv - scale * s_qq - 2.0 * offset * s_q)
            + offset * (2.0 * self.s_v - offset * self.s_1)
    }

    /// Both ends close to the range, and the step not much wider than the plain one.
    fn is_admissible(&self, fit: Fit) -> bool {
        let last = fit.scale * self.q_max + fit.offset;
        self.is_weighted
            || fit.scale * self.q_max <= WIDEST * self.range
                && fit.offset.abs() <= REACH * fit.scale
                && last >= self.range - REACH * fit.scale
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fit::testing::stray_weights;

    #[test]
    fn no_weight_is_far_from_the_range_and_no_step_is_much_wider_than_plain() {
        for weights in stray_weights() {
            let [low, high] = ends(&weights);
            for q_max in [3.0, 15.0] {
                let line = fit_line(&weights, None, q_max);
                let slack = REACH * line.scale + 1e-5;
                assert!(line.scale * q_max <= WIDEST * (high - low) + 1e-5);
                assert!(line.min >= 0.0 && -line.min <= low + slack, "{weights:?}");
                assert!(line.scale * q_max - line.min >= high - slack, "{weights:?}");
            }
        }
    }
}
