//! HQQ: zero points that leave the least error in a norm that forgives outliers; needs no text.
//!
//! ```text
//! minimize  |w - s (q - z)|_p   with p = 0.7, over z and a sparse part e
//! repeat:   q = round(w / s + z)
//!           e = shrink(w - s (q - z), β)       what is left of large errors
//!           z = mean(q - (w - e) / s)          of the group; β grows
//! ```
//!
//! Scales are those of the range. They and the zero points are rounded to f16 before codes are
//! chosen.
//!
//! # Paper
//!
//! Badri and Shaji, *Half-Quadratic Quantization of Large Machine Learning Models*, 2023.

use half::f16;

use super::threads::for_chunks;
use super::{Grid, Result, SolveError, Weights};

/// Norm of the errors.
const P: f32 = 0.7;
/// First weight of the sparse part, and its growth.
const BETA: f32 = 10.0;
const GROWTH: f32 = 1.01;
/// Most rounds.
const N_ROUNDS: usize = 20;

/// A matrix with zero points that are seldom whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Hqq {
    /// Outputs and inputs.
    pub shape: [usize; 2],
    /// Bits of a code.
    pub bits: usize,
    /// Inputs that share a scale.
    pub group: usize,
    /// `[n, k]`.
    pub codes: Vec<u8>,
    /// `[n, groups]`, values of f16.
    pub scales: Vec<f32>,
    /// `[n, groups]`, values of f16.
    pub zeros: Vec<f32>,
}

/// The weights of one scale.
#[derive(Clone)]
struct Part {
    codes: Vec<u8>,
    scale: f32,
    zero: f32,
}

/// Finds the zero points.
///
/// # Errors
///
/// A weight that is no number, one too large for a scale in f16, a group that does not divide the
/// inputs.
pub fn solve(weights: Weights<'_>, grid: &Grid, n_threads: usize) -> Result<Hqq> {
    weights.check(grid)?;
    let [n, k] = weights.shape;
    let group = grid.group.inputs(k);
    let empty = Part { codes: Vec::new(), scale: 0.0, zero: 0.0 };
    let mut groups = vec![empty; n * k / group];
    const GROUPS: usize = 64;
    for_chunks(&mut groups, GROUPS, n_threads, |chunk, groups| {
        for (i, out) in groups.iter_mut().enumerate() {
            let at = (chunk * GROUPS + i) * group;
            let row = at / k;
            *out = solve_group(&weights.values[at..at + group], f32::from(grid.most()))
                .ok_or(SolveError::Scale { row })?;
        }
        Ok::<(), SolveError>(())
    })?;
    Ok(Hqq {
        shape: weights.shape,
        bits: grid.bits,
        group,
        scales: groups.iter().map(|group| group.scale).collect(),
        zeros: groups.iter().map(|group| group.zero).collect(),
        codes: groups.into_iter().flat_map(|group| group.codes).collect(),
    })
}

impl Hqq {
    /// The weights that the codes stand for, `[n, k]`.
    pub fn weights(&self) -> Vec<f32> {
        let steps = self.scales.iter().zip(&self.zeros);
        let groups = self.codes.chunks_exact(self.group).zip(steps);
        groups
            .flat_map(|(codes, (scale, zero))| {
                codes.iter().map(move |code| scale * (f32::from(*code) - zero))
            })
            .collect()
    }
}

/// `None` where a scale or a zero point is beyond f16.
fn solve_group(w: &[f32], most: f32) -> Option<Part> {
    let (low, high) =
        w.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(a, b), w| (a.min(*w), b.max(*w)));
    let half = |x: f32| Some(f16::from_f32(x).to_f32()).filter(|x| x.is_finite());
    let scale = half((high - low) / most)?;
    if scale == 0.0 {
        // All weights are the same, or nearly: one step is that weight.
        let scale = half(low.abs())?;
        let (code, zero) = match (scale > 0.0, low < 0.0) {
            (false, _) => (0, 0.0),
            (true, true) => (0, 1.0),
            (true, false) => (1, 0.0),
        };
        let scale = if scale == 0.0 { 1.0 } else { scale };
        return Some(Part { codes: vec![code; w.len()], scale, zero });
    }
    let code = |w: f32, zero: f32| (w / scale + zero).round_ties_even().clamp(0.0, most);
    let error = |zero: f32| -> f64 {
        w.iter().map(|w| f64::from((w - scale * (code(*w, zero) - zero)).abs())).sum()
    };
    let mut zero = half(-low / scale)?;
    let (mut beta, mut best) = (BETA, (error(zero), zero));
    for _ in 0..N_ROUNDS {
        let next = |w: &f32| {
            let q = code(*w, zero);
            let left = w - scale * (q - zero);
            f64::from(q - (w - shrunk(left, beta)) / scale)
        };
        let mean = w.iter().map(next).sum::<f64>() / w.len() as f64;
        zero = half(mean as f32)?;
        beta *= GROWTH;
        let error = error(zero);
        if error >= best.0 {
            break;
        }
        best = (error, zero);
    }
    let zero = best.1;
    Some(Part { codes: w.iter().map(|w| code(*w, zero) as u8).collect(), scale, zero })
}

/// The sparse part of an error: nothing of small ones, most of large ones.
fn shrunk(error: f32, beta: f32) -> f32 {
    let size = error.abs();
    (size - (size + 1e-8).powf(P - 1.0) / beta).max(0.0).copysign(error)
}

#[cfg(test)]
mod tests {
    use super::super::Group;
    use super::*;

    #[test]
    fn zero_points_move_for_the_many_and_the_sum_of_errors_falls() {
        // Nearly all weights on a grid that the range, which one outlier sets, does not hit.
        let values: Vec<f32> = (0..128)
            .map(|i| if i == 77 { 1.03 } else { ((i * 7) % 13) as f32 * 0.05 - 0.3 })
            .collect();
        let grid = Grid { bits: 4, group: Group::Inputs(64), symmetric: false };
        let weights = Weights { shape: [2, 64], values: &values };
        let solved = solve(weights, &grid, 1).expect("solves");
        let plain = super::super::rtn::solve(weights, &grid, 1).expect("rounds");
        let error = |found: Vec<f32>| -> f32 {
            values.iter().zip(found).map(|(w, found)| (w - found).abs()).sum()
        };
        let (own, rounded) = (error(solved.weights()), error(plain.weights()));
        assert!(own < 0.95 * rounded, "{own} {rounded}");
        assert!(solved.zeros.iter().any(|zero| zero.fract() != 0.0), "{:?}", solved.zeros);
    }

    #[test]
    fn groups_of_one_value_are_kept() {
        let grid = Grid { bits: 2, group: Group::Inputs(4), symmetric: false };
        let values = [0.0, 0.0, 0.0, 0.0, -0.25, -0.25, -0.25, -0.25, 3.0, 3.0, 3.0, 3.0];
        let weights = Weights { shape: [3, 4], values: &values };
        assert_eq!(solve(weights, &grid, 1).expect("solves").weights(), values);
    }
}
