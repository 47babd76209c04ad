//! From weights to points of a lattice.

use super::{BLOCK_LEN, LatticeFormat, Parts, Signs};
use crate::fit::{Rounding, fit_odd_scales};

/// The numbers of a block whose weights are near `weights`.
pub(super) fn fit<F: LatticeFormat>(weights: &[f32; BLOCK_LEN]) -> Parts {
    let rounding = Rounding {
        top: f32::from(*F::LEVELS.values.iter().max().expect("values")),
        s_max: F::S_MAX,
        values: &|scaled, values| {
            let (mut levels, mut signs) = ([0; 32], [0; 4]);
            round::<F>(scaled, &mut levels, &mut signs);
            for (i, value) in values.iter_mut().enumerate() {
                *value = F::LEVELS.value(levels[i], signs[i / 8] >> (i % 8) & 1);
            }
        },
    };
    let (d, scales) = fit_odd_scales(weights, F::SCALE_LEN, F::LEVELS.unit, &rounding);
    let mut parts = Parts::new(d);
    let d = d.to_f32() * F::LEVELS.unit;
    for (j, weights) in weights.chunks(F::SCALE_LEN).enumerate() {
        let at = j * F::SCALE_LEN;
        let end = at + F::SCALE_LEN;
        parts.set_scales(at / 16..end / 16, scales[j]);
        let scale = d * f32::from(2 * scales[j] + 1);
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        let mut scaled = [0.0; 32];
        scaled.iter_mut().zip(weights).for_each(|(x, w)| *x = w * inverse);
        let scaled = &scaled[..F::SCALE_LEN];
        round::<F>(scaled, &mut parts.levels[at..end], &mut parts.signs[at / 8..end / 8]);
    }
    parts
}

/// Levels and signs near `scaled`, in units of the scale.
fn round<F: LatticeFormat>(scaled: &[f32], levels: &mut [u8], signs: &mut [u8]) {
    match F::SIGNS {
        Signs::Free | Signs::Even => {
            for (j, x) in scaled.as_chunks::<8>().0.iter().enumerate() {
                signs[j] = (0..8).fold(0, |byte, i| byte | u8::from(x[i] < 0.0) << i);
                if F::SIGNS == Signs::Even && signs[j].count_ones() % 2 == 1 {
                    let smallest = (0..8).min_by(|&a, &b| x[a].abs().total_cmp(&x[b].abs()));
                    signs[j] ^= 1 << smallest.expect("eight");
                }
                snap::<F>(x, signs[j], &mut levels[8 * j..8 * j + 8]);
            }
        }
        Signs::Shared(n) => {
            let outputs = levels.chunks_mut(n).zip(signs.chunks_mut(n / 8));
            for (x, (levels, signs)) in scaled.chunks(n).zip(outputs) {
                let mut error = |sign: u8| -> f32 {
                    snap::<F>(x, 255 * sign, levels);
                    let value = |level: &u8| F::LEVELS.value(*level, sign);
                    x.iter().zip(&*levels).map(|(x, level)| (x - value(level)).powi(2)).sum()
                };
                let (plus, minus) = (error(0), error(1));
                // The levels are now those of the second.
                let sign = u8::from(minus < plus);
                if sign == 0 {
                    snap::<F>(x, 0, levels);
                }
                signs.fill(255 * sign);
            }
        }
    }
}

/// The points nearest to the levels that each weight of `x` alone rounds to.
fn snap<F: LatticeFormat>(x: &[f32], signs: u8, levels: &mut [u8]) {
    let n_dims = F::LATTICE.n_dims;
    for (i, (level, x)) in levels.iter_mut().zip(x).enumerate() {
        *level = F::LEVELS.nearest(*x, signs >> (i % 8) & 1);
    }
    for levels in levels.chunks_mut(n_dims) {
        let index = F::LATTICE.index_of(levels);
        levels.copy_from_slice(F::LATTICE.point(index));
    }
}
