//! Floats of 4 bits, E2M1: MXFP4 with a power of two per 32 inputs, NVFP4 with an 8-bit float per 16
//! inputs and a divisor per matrix.
//!
//! ```text
//! MXFP4   w = 2^(e - 127) * E2M1[code]             e around that of max|w| / 6
//! NVFP4   w = (e4m3(s) / divisor) * E2M1[code]     divisor = 448 * 6 / max|w| of the matrix
//! ```
//!
//! Scales are searched: a smaller one clips the largest weight and is finer for all others. The one
//! of least squared error is taken among the four codes up to that of the largest weight; errors are
//! weighed where they are made good by later inputs, as GPTQ weighs them.

use pelton_kernels::codes::{E2M1, e4m3};

use super::gptq::{self, Factor, Levels};
use super::threads::for_chunks;
use super::{Result, SolveError, Weights, fp8};

/// The scales of 4-bit floats.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// A power of two per 32 inputs.
    Mx,
    /// An 8-bit float per 16 inputs, and a divisor per matrix.
    Nv,
}

impl Kind {
    /// Inputs that share a scale.
    pub fn group(self) -> usize {
        match self {
            Self::Mx => 32,
            Self::Nv => 16,
        }
    }

    /// The scale that a code stands for.
    fn scale(self, code: u8, divisor: f32) -> f32 {
        match (self, code) {
            // 2^-127 is subnormal.
            (Self::Mx, 0) => f32::from_bits(1 << 22),
            (Self::Mx, code) => f32::from_bits(u32::from(code) << 23),
            (Self::Nv, code) => e4m3(code) / divisor,
        }
    }

    /// The largest code of a scale that is tried for weights up to `largest`: the first at which
    /// nothing is clipped.
    fn widest(self, largest: f32, divisor: f32) -> u8 {
        match self {
            Self::Mx => {
                let wanted = largest / 6.0;
                // The exponent of a power of two that is at least this large.
                let floor = (wanted.to_bits() >> 23) as u8;
                let is_power = wanted.to_bits().trailing_zeros() >= 23;
                (floor + u8::from(!is_power)).min(254)
            }
            Self::Nv => {
                let wanted = largest / 6.0 * divisor;
                let code = fp8::nearest(wanted);
                // The codes of positive numbers ascend with them.
                code + u8::from(e4m3(code) < wanted && code < 0x7e)
            }
        }
    }
}

/// A matrix of 4-bit floats.
#[derive(Clone, Debug, PartialEq)]
pub struct Fp4 {
    /// Outputs and inputs.
    pub shape: [usize; 2],
    /// Its kind of scales.
    pub kind: Kind,
    /// `[n, k]`.
    pub codes: Vec<u8>,
    /// `[n, groups]`.
    pub scales: Vec<u8>,
    /// Of all scales of NVFP4; 1 for MXFP4.
    pub divisor: f32,
}

/// Rounds every weight to the nearest number of its group.
///
/// # Errors
///
/// A weight that is no number, and inputs that are not whole groups.
pub fn solve(weights: Weights<'_>, kind: Kind, n_threads: usize) -> Result<Fp4> {
    let levels = Floats::new(weights, kind)?;
    let group = kind.group();
    let mut groups: Vec<(u8, Vec<u8>)> = vec![(0, Vec::new()); weights.values.len() / group];
    const GROUPS: usize = 256;
    for_chunks(&mut groups, GROUPS, n_threads, |chunk, groups| {
        for (i, out) in groups.iter_mut().enumerate() {
            let values = &weights.values[(chunk * GROUPS + i) * group..][..group];
            let scale = levels.best_scale(values, None);
            let size = kind.scale(scale, levels.divisor);
            *out = (scale, values.iter().map(|w| nearest(w, size)).collect());
        }
        Ok::<(), SolveError>(())
    })?;
    let scales = groups.iter().map(|(scale, _)| *scale).collect();
    let codes = groups.into_iter().flat_map(|(_, codes)| codes).collect();
    Ok(Fp4 { shape: weights.shape, kind, codes, scales, divisor: levels.divisor })
}

/// Rounds one input after the other, and makes each error good in those that follow.
///
/// # Errors
///
/// As [`solve`].
///
/// # Panics
///
/// When the factor is of another number of inputs, or has them in another order.
pub fn compensated(
    weights: Weights<'_>,
    kind: Kind,
    factor: &Factor,
    n_threads: usize,
) -> Result<Fp4> {
    let levels = Floats::new(weights, kind)?;
    let rounded = gptq::round_rows(weights, &levels, factor, n_threads)?;
    assert!(rounded.groups.is_sorted(), "groups that follow each other");
    let scales = rounded.steps.iter().map(|(scale, _)| *scale).collect();
    let (shape, codes) = (weights.shape, rounded.codes);
    Ok(Fp4 { shape, kind, codes, scales, divisor: levels.divisor })
}

/// The numbers of a matrix.
struct Floats {
    kind: Kind,
    divisor: f32,
}

impl Floats {
    fn new(weights: Weights<'_>, kind: Kind) -> Result<Self> {
        weights.check_finite()?;
        let (k, group) = (weights.shape[1], kind.group());
        if k == 0 || !k.is_multiple_of(group) {
            return Err(SolveError::Group { k, group });
        }
        let largest = weights.values.iter().fold(0.0_f32, |most, w| most.max(w.abs()));
        let divisor = match kind {
            Kind::Nv if largest > 0.0 => (fp8::LARGEST * 6.0 / largest).min(f32::MAX),
            _ => 1.0,
        };
        Ok(Self { kind, divisor })
    }

    /// The scale of a group with the least squared error.
    fn best_scale(&self, values: &[f32], importance: Option<&[f32]>) -> u8 {
        const N_TRIED: u8 = 4;
        let largest = values.iter().fold(0.0_f32, |most, w| most.max(w.abs()));
        let widest = self.kind.widest(largest, self.divisor);
        let mut best = (f64::INFINITY, widest);
        for scale in (widest.saturating_sub(N_TRIED - 1)..=widest).rev() {
            let size = self.kind.scale(scale, self.divisor);
            let error = |(j, w): (usize, &f32)| {
                let weight = importance.map_or(1.0, |importance| f64::from(importance[j]));
                weight * f64::from(w - size * E2M1[usize::from(nearest(w, size))]).powi(2)
            };
            let error: f64 = values.iter().enumerate().map(error).sum();
            if error < best.0 {
                best = (error, scale);
            }
        }
        best.1
    }
}

impl Levels for Floats {
    /// The code of a scale, and the number that it stands for.
    type Step = (u8, f32);

    fn group(&self, _: usize) -> usize {
        self.kind.group()
    }

    fn step(&self, _: usize, _: usize, weights: &[f32], importance: &[f32]) -> Result<(u8, f32)> {
        let scale = self.best_scale(weights, Some(importance));
        Ok((scale, self.kind.scale(scale, self.divisor)))
    }

    fn round(&self, (_, size): (u8, f32), weight: f32) -> (u8, f32) {
        let code = nearest(&weight, size);
        (code, size * E2M1[usize::from(code)])
    }
}

impl Fp4 {
    /// The weights that the codes stand for, `[n, k]`.
    pub fn weights(&self) -> Vec<f32> {
        let groups = self.codes.chunks_exact(self.kind.group()).zip(&self.scales);
        groups
            .flat_map(|(codes, scale)| {
                let scale = self.kind.scale(*scale, self.divisor);
                codes.iter().map(move |code| scale * E2M1[usize::from(*code)])
            })
            .collect()
    }
}

/// The code of the number nearest to `w` in units of `size`; the smaller magnitude in the middle, and
/// +0 for zeros.
fn nearest(w: &f32, size: f32) -> u8 {
    let x = if size > 0.0 { w / size } else { 0.0 };
    let above = |pair: &&[f32]| x.abs() > 0.5 * (pair[0] + pair[1]);
    let code = E2M1[..8].windows(2).filter(above).count() as u8;
    if x < 0.0 && code > 0 { code + 8 } else { code }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_widest_scale_clips_nothing_and_the_one_below_it_does() {
        for kind in [Kind::Mx, Kind::Nv] {
            for i in 1..200 {
                let largest = 0.013 * i as f32;
                let divisor = if kind == Kind::Nv { 448.0 * 6.0 / 2.6 } else { 1.0 };
                let widest = kind.widest(largest, divisor);
                assert!(kind.scale(widest, divisor) * 6.0 >= largest * 0.999_999, "{largest}");
                assert!(kind.scale(widest - 1, divisor) * 6.0 < largest, "{kind:?} {largest}");
            }
        }
    }

    #[test]
    fn a_search_finds_the_best_of_all_scales() {
        // The largest weights of groups lie anywhere between two powers of two.
        let value = |i: usize| {
            let octave = (i / 16 % 16) as f32 / 16.0;
            ((i * 7919 % 1009) as f32 / 504.5 - 1.0).powi(3) * octave.exp2()
        };
        let values: Vec<f32> = (0..64 * 32).map(value).collect();
        let weights = Weights { shape: [64, 32], values: &values };
        for kind in [Kind::Mx, Kind::Nv] {
            let solved = solve(weights, kind, 1).expect("rounds");
            let error = |values: &[f32], scale: u8| -> f64 {
                let size = kind.scale(scale, solved.divisor);
                let square = |w| f64::from(w - size * E2M1[usize::from(nearest(w, size))]).powi(2);
                values.iter().map(square).sum()
            };
            let mut n_smaller = 0;
            for (values, found) in values.chunks(kind.group()).zip(&solved.scales) {
                let largest = values.iter().fold(0.0_f32, |most, w| most.max(w.abs()));
                let widest = kind.widest(largest, solved.divisor);
                let best = (1..=widest).map(|scale| error(values, scale)).fold(f64::MAX, f64::min);
                assert_eq!(error(values, *found), best, "{kind:?}");
                n_smaller += usize::from(*found < widest);
            }
            assert!(n_smaller > solved.scales.len() / 8, "{kind:?}: {n_smaller} are smaller");
        }
    }
}
