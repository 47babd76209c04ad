//! Searching for scales: the part of quantization that is not rounding.
//!
//! A block format stores a few parameters and many small integers. Given the integers, the best
//! parameters are a linear least-squares problem; given the parameters, the best integers are
//! nearest neighbours. Alternating between the two only finds the optimum beside its start, so the
//! searches here begin at several starts, which clip or widen the range a little, and keep the one
//! of least error:
//!
//! ```text
//! for each start:  q = nearest(w / scale)            integers from parameters
//!                  scale, min = least squares (q, w)  parameters from integers
//!                  error = sum u (w - value(q))^2
//! ```
//! * [`affine`]: `w = scale * q - min`, `q` from 0: Q2_K, Q4_K, Q5_K.
//! * [`signed`]: `w = scale * v`, `v` of a [`Grid`] of both signs: Q3_K, Q6_K, IQ4_NL, IQ4_XS.
//! * [`odd`]: `w = scale * v` with odd multiples for scales and `v` rounded in groups: IQ1, IQ2,
//!   IQ3.
//! * [`step`]: parameters of sub-blocks are stored as integers themselves, times one half-precision
//!   step per block.
//!
//! **Weights of the error.** `u = rms + |w|`: large weights move the output more, yet the many
//! small ones must not be rounded away. Compared with `u = 1`, Gaussian rows err 1 % more (RMSE)
//! with four bits or more, 2 % with two. Where the importance of inputs is known (the mean of their
//! squares, an importance matrix), it is multiplied by the flatter `sqrt(2 rms² + w²)`, nearly as in
//! llama.cpp: with `rms + |w|` the error that importance alone weighs was 0.7 % higher in Q3_K and
//! 2 % in Q2_K, and divergences differed by less than 2 %.
//!
//! **Limit of a search.** Least squares would leave one outlier among small weights far outside the
//! range. A candidate is taken only if its range reaches every weight to within about a step, and
//! its step is not much wider than that of plain rounding; so the error of each single weight is
//! bounded. On Gaussian rows this costs nothing. An importance of the inputs lifts the limit, which
//! would keep weights that hardly matter near at the cost of the others: with it Q3_K erred 6.5 %
//! more than llama.cpp on a model with some inputs 500 times as important as the mean, without it
//! no type errs more.
//!
//! Sums run in 8 striped lanes, so that they are quick without intrinsics and the same everywhere.

mod affine;
mod odd;
mod signed;
mod step;

pub(crate) use affine::{affine_error, fit_affine_block};
pub(crate) use odd::{Rounding, fit_odd_scales};
pub(crate) use signed::{Grid, Integers, fit_scale, fit_signed_block, signed_error};
pub(crate) use step::{saturating_half, step_for};

/// Lanes of every sum.
const LANES: usize = 8;

/// Larger magnitudes are cut off, smaller ones are zero: no scale of half precision reaches either.
/// Between them no sum overflows or vanishes.
const HUGE: f32 = 1e9;
const TINY: f32 = 1e-12;

/// The integer nearest to `x` in `low..=high`, ties to even; magnitudes below 2^22 only.
///
/// Adding 1.5 * 2^23 leaves no bit for a fraction. Unlike `round` this is two instructions on every
/// processor, and so are comparisons that need not look for NaN, which becomes `low` here.
#[inline(always)]
pub(crate) fn nearest(x: f32, low: f32, high: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0;
    let x = if x > low { x } else { low };
    let x = if x < high { x } else { high };
    (x + SHIFT) - SHIFT
}

/// Factor of the squared error of each weight (see the head of the file); `inputs` are the
/// importance of each weight's input, where it is known.
fn importance<const N: usize>(weights: &[f32; N], inputs: Option<&[f32; N]>) -> [f32; N] {
    let [energy] = sum(weights, weights, |a, b| [a * b]);
    let rms = (energy / N as f32).sqrt();
    match inputs {
        None => weights.map(|w| rms + w.abs()),
        Some(inputs) => {
            std::array::from_fn(|i| (2.0 * rms * rms + weights[i] * weights[i]).sqrt() * inputs[i])
        }
    }
}

/// Sums of the terms of each pair of `a` and `b`, in striped lanes.
#[inline(always)]
fn sum<const N: usize, const T: usize>(
    a: &[f32; N],
    b: &[f32; N],
    terms: impl Fn(f32, f32) -> [f32; T],
) -> [f32; T] {
    const { assert!(N.is_multiple_of(LANES)) };
    let mut lanes = [[0.0_f32; LANES]; T];
    for (a, b) in a.as_chunks::<LANES>().0.iter().zip(b.as_chunks::<LANES>().0) {
        for lane in 0..LANES {
            for (sum, term) in lanes.iter_mut().zip(terms(a[lane], b[lane])) {
                sum[lane] += term;
            }
        }
    }
    lanes.map(|[a, b, c, d, e, f, g, h]| ((a + e) + (c + g)) + ((b + f) + (d + h)))
}

#[cfg(test)]
mod testing {
    /// Rows of two to four values and one stray weight, which least squares would rather give up.
    pub(super) fn stray_weights() -> impl Iterator<Item = [f32; 16]> {
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        let mut next = move |n: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) % n
        };
        std::iter::repeat_with(move || {
            let values = [0; 4].map(|_| next(2001) as f32 / 1000.0 - 1.0);
            let n_values = 2 + next(3);
            let mut weights = [0; 16].map(|_| values[next(n_values) as usize]);
            weights[0] = next(2001) as f32 / 500.0 - 2.0;
            weights
        })
        .take(50_000)
    }
}
