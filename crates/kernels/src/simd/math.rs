//! The exponential, and functions made of it.
//!
//! ```text
//! exp(x):  n = round(x · log2 e)            by adding and subtracting 1.5 · 2²³
//!          r = x - n · ln 2                 ln 2 in two parts, two fused steps
//!          p = 1 + r + r² (c0 + c1 r + c2 r² + c3 r³ + c4 r⁴)      |r| <= ln 2 / 2
//!          p · 2ⁿ                           rounded once, so subnormal results are right too
//! ```
//!
//! About 12 operations per sixteen lanes. The coefficients minimise the largest relative error of
//! the whole (3.1e-9 before rounding); the result is within 1 unit in the last place of the true
//! value, and the same bits on every instruction set.
//!
//! Below -104 the result is 0 by rounding, above 88.73 it is infinite; a NaN stays one.
//!
//! Tried and dropped: scaling by adding `n << 23` to the bits (wrong within 0.35 of the overflow
//! and for all subnormal results); degree 5 (3 units in the last place); `libm` (other bits on
//! other machines).

use super::Simd;

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// Leading 16 bits of ln 2, so that `n · LN_2_HIGH` is exact for every `n` in use.
const LN_2_HIGH: f32 = 0.693_145_75;
const LN_2_LOW: f32 = 1.428_606_8e-6;
/// Adding it rounds to an integer, ties to even.
const ROUND: f32 = 12_582_912.0;
/// `exp` of it rounds to zero.
const LEAST: f32 = -104.0;
/// `exp` of it overflows.
const MOST: f32 = 89.0;
const C: [f32; 5] = [0.499_999_94, 0.166_665_21, 0.041_668_39, 0.008_368_745, 0.001_381_454];

/// Smallest result of [`decay`] but 0, which is 2⁻⁶⁴.
const LEAST_DECAY: f32 = f32::from_bits((127 - 64) << 23);
/// `exp` of it is below [`LEAST_DECAY`].
const BELOW_DECAYS: f32 = -45.0;

/// `eˣ` in every lane.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    exp_from(s, LEAST, x)
}

/// `eˣ` for `x <= 0`, and 0 where that is below 2⁻⁶⁴.
///
/// An update that has faded so far is 10¹² times smaller than the rounding of the next ones.
/// Without this limit it fades on into the subnormal numbers, and some processors take a hundred
/// times as long for each operation that reads one.
#[inline(always)]
pub(crate) fn decay<S: Simd>(s: S, x: S::F) -> S::F {
    s.zero_below(exp_from(s, BELOW_DECAYS, x), s.splat(LEAST_DECAY))
}

/// `eˣ`, and that of `least` where `x` is smaller.
#[inline(always)]
fn exp_from<S: Simd>(s: S, least: f32, x: S::F) -> S::F {
    let x = s.min(s.splat(MOST), s.max(s.splat(least), x));
    let shifted = s.fma(x, s.splat(LOG2_E), s.splat(ROUND));
    let n = s.sub(shifted, s.splat(ROUND));
    let r = s.fma(n, s.splat(-LN_2_HIGH), x);
    let r = s.fma(n, s.splat(-LN_2_LOW), r);
    let mut p = s.splat(C[4]);
    p = s.fma(p, r, s.splat(C[3]));
    p = s.fma(p, r, s.splat(C[2]));
    p = s.fma(p, r, s.splat(C[1]));
    p = s.fma(p, r, s.splat(C[0]));
    p = s.fma(p, r, s.splat(1.0));
    p = s.fma(p, r, s.splat(1.0));
    s.scale(p, n)
}

/// Coefficients of 2ˣ for `0 <= x <= 1` after the 1, the largest relative error of which is 2.9e-6.
const POWER_OF_2: [f32; 4] = [0.693_044_84, 0.241_280_2, 0.052_242_474, 0.013_426_684];
/// Exponent of the smallest result of [`exp_bf16`].
const LEAST_POWER: f32 = -49.0;
/// A sum of it and a number from 1 to 2 is rounded to the numbers that bf16 has there.
const ROUND_BF16: f32 = 98_304.0;
/// Added to exponents, so that they are positive.
const MORE_POWER: f32 = 96.0;
/// 2 to minus that.
const LESS: f32 = f32::from_bits((127 - 96) << 23);

/// `eˣ` for `x <= 0` as the float of a bf16, within 0.51 units of its last place; never below 2⁻⁴⁹.
///
/// The power of two of the fraction, from 1 to 2, has a polynomial of degree 4, whose last sum
/// rounds it to eight bits: nine operations, where [`exp`] and a rounding take sixteen. The
/// exponents have 96 more until the end, so that their fractions are exact, rounded in whatever
/// way.
#[inline(always)]
pub(crate) fn exp_bf16<S: Simd>(s: S, x: S::F) -> S::F {
    let (p, power) = power_of_2(s, x, 1.0 + ROUND_BF16);
    s.scale_normal(s.sub(p, s.splat(ROUND_BF16 * LESS)), power)
}

/// `eˣ` for `x <= 0` with a relative error below 6e-6, which is little beside that of a bf16; never
/// below 2⁻⁴⁹.
#[inline(always)]
pub(crate) fn exp_near_bf16<S: Simd>(s: S, x: S::F) -> S::F {
    let (p, power) = power_of_2(s, x, 1.0);
    s.scale_normal(p, power)
}

/// The polynomial of the fraction plus `constant - 1`, and the power of two that multiplies it.
#[inline(always)]
fn power_of_2<S: Simd>(s: S, x: S::F, constant: f32) -> (S::F, S::F) {
    let power = s.fma(x, s.splat(LOG2_E), s.splat(MORE_POWER));
    let power = s.max(s.splat(LEAST_POWER + MORE_POWER), power);
    let f = s.fraction(power);
    let [c1, c2, c3, c4] = POWER_OF_2;
    let mut p = s.fma(f, s.splat(c4 * LESS), s.splat(c3 * LESS));
    p = s.fma(p, f, s.splat(c2 * LESS));
    p = s.fma(p, f, s.splat(c1 * LESS));
    (s.fma(p, f, s.splat(constant * LESS)), power)
}

/// `1 / (1 + e⁻ˣ)` times `y`, as the quotient `y / (1 + e⁻ˣ)`.
#[inline(always)]
pub(crate) fn times_sigmoid<S: Simd>(s: S, y: S::F, x: S::F) -> S::F {
    let e = exp(s, s.sub(s.splat(0.0), x));
    s.div(y, s.add(s.splat(1.0), e))
}

/// `tanh x` as `2 / (1 + e⁻²ˣ) - 1`; the error is absolute, below 2e-7.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(s: S, x: S::F) -> S::F {
    let twice = times_sigmoid(s, s.splat(2.0), s.add(x, x));
    s.sub(twice, s.splat(1.0))
}

/// `ln(1 + eˣ)` as `max(x, 0) + 2 artanh(e / (2 + e))` with `e = e⁻|ˣ|`, whose argument is at most a
/// third, so that eight terms of the series are enough; within 4 units in the last place.
#[inline(always)]
pub(crate) fn softplus<S: Simd>(s: S, x: S::F) -> S::F {
    let (zero, one, two) = (s.splat(0.0), s.splat(1.0), s.splat(2.0));
    let negated = s.sub(zero, x);
    let e = exp(s, s.min(x, negated));
    let t = s.div(e, s.add(two, e));
    let square = s.mul(t, t);
    let mut sum = s.splat(1.0 / 15.0);
    for odd in [13.0, 11.0, 9.0, 7.0, 5.0, 3.0] {
        sum = s.fma(sum, square, s.splat(1.0 / odd));
    }
    let sum = s.fma(sum, square, one);
    s.fma(s.mul(two, t), sum, s.max(x, zero))
}

#[cfg(test)]
mod tests {
    use super::super::Scalar;
    use super::*;
    use crate::testing::{Random, bits, hostile_floats};

    fn exp_all<S: Simd>(s: S, x: &[f32; 16], out: &mut [f32; 16]) {
        s.store(exp(s, s.load(x)), out);
    }

    #[test]
    fn an_exponential_in_bf16_is_half_a_unit_from_the_true_value() {
        for i in 0..400_000 {
            let x = -33.0 * (i as f32 / 400_000.0);
            let mut out = [0.0; 16];
            Scalar.store(exp_bf16(Scalar, Scalar.splat(x)), &mut out);
            let exact = f64::from(x).exp();
            let unit = exact.log2().floor().exp2() / 128.0;
            let error = (f64::from(out[0]) - exact).abs();
            assert!(error <= 0.51 * unit, "{x}: {} is {error} off", out[0]);
            assert_eq!(half::bf16::from_f32(out[0]).to_f32(), out[0], "{x}");
            Scalar.store(exp_near_bf16(Scalar, Scalar.splat(x)), &mut out);
            let error = (f64::from(out[0]) - exact).abs();
            assert!(error <= 6e-6 * exact, "{x}: {} is {error} off", out[0]);
        }
        for (x, expected) in [(0.0, 1.0), (-1e30, 2_f32.powi(-49)), (f32::MIN, 2_f32.powi(-49))] {
            let mut out = [0.0; 16];
            Scalar.store(exp_bf16(Scalar, Scalar.splat(x)), &mut out);
            assert_eq!(out[0], expected, "{x}");
        }
        let mut out = [0.0; 16];
        Scalar.store(exp_bf16(Scalar, Scalar.splat(f32::NAN)), &mut out);
        assert!(out[0].is_nan());
    }

    fn exp_scalar(x: f32) -> f32 {
        let mut out = [0.0; 16];
        exp_all(Scalar, &[x; 16], &mut out);
        out[0]
    }

    #[test]
    fn exp_is_within_one_unit_in_the_last_place() {
        let mut worst = 0.0_f64;
        for i in 0..2_000_000 {
            let x = -104.0 + i as f32 * (193.0 / 2_000_000.0);
            let exact = f64::from(x).exp();
            let got = exp_scalar(x);
            if exact >= f64::from(f32::MAX) {
                assert!(got == f32::INFINITY || exact < 3.41e38, "{x}: {got}");
                continue;
            }
            // The distance of neighbouring floats at the exact value.
            let unit = (2.0_f64).powi((exact.log2().floor() as i32).max(-126) - 23);
            worst = worst.max((f64::from(got) - exact).abs() / unit);
        }
        assert!(worst <= 1.0, "{worst} units in the last place");
    }

    #[test]
    fn exp_of_the_ends_is_what_it_should_be() {
        assert_eq!(exp_scalar(0.0), 1.0);
        assert_eq!(exp_scalar(-0.0), 1.0);
        assert_eq!(exp_scalar(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp_scalar(-1000.0), 0.0);
        assert_eq!(exp_scalar(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp_scalar(88.8), f32::INFINITY);
        assert!(exp_scalar(88.7).is_finite());
        assert!(exp_scalar(f32::NAN).is_nan());
    }

    #[test]
    fn a_decay_is_the_exponential_or_zero_where_that_is_below_its_limit() {
        let of = |x: f32| {
            let mut out = [0.0; 16];
            Scalar.store(decay(Scalar, Scalar.splat(x)), &mut out);
            out[0]
        };
        for i in 0..200_000 {
            let x = -110.0 * (i as f32 / 200_000.0);
            let exact = exp_scalar(x);
            assert_eq!(of(x), if exact < 2_f32.powi(-64) { 0.0 } else { exact }, "{x}");
        }
        assert_eq!([of(f32::MIN), of(f32::NEG_INFINITY)], [0.0; 2]);
        assert!(of(f32::NAN).is_nan());
    }

    #[test]
    fn softplus_is_within_four_units_in_the_last_place() {
        fn all<S: Simd>(s: S, x: &[f32; 16], out: &mut [f32; 16]) {
            s.store(softplus(s, s.load(x)), out);
        }
        let of = |x: f32| {
            let mut out = [0.0; 16];
            all(Scalar, &[x; 16], &mut out);
            out[0]
        };
        for i in 0..400_000 {
            let x = -80.0 + i as f32 * (180.0 / 400_000.0);
            let exact = f64::from(x).exp().ln_1p();
            let unit = (2.0_f64).powi((exact.log2().floor() as i32).max(-126) - 23);
            let off = (f64::from(of(x)) - exact).abs() / unit;
            assert!(off <= 4.0, "{x}: {} is {off} units off {exact}", of(x));
        }
        assert_eq!([of(f32::NEG_INFINITY), of(-1000.0)], [0.0; 2]);
        assert_eq!([of(f32::INFINITY), of(1e30)], [f32::INFINITY, 1e30]);
        assert!(of(f32::NAN).is_nan());
    }

    #[inline(always)]
    fn all_functions<S: Simd>(s: S, x: &[f32; 16]) -> Vec<u32> {
        let v = s.load(x);
        let mut out = [[0.0; 16]; 7];
        s.store(exp_near_bf16(s, s.min(s.splat(0.0), v)), &mut out[6]);
        s.store(decay(s, v), &mut out[5]);
        s.store(exp(s, v), &mut out[0]);
        s.store(times_sigmoid(s, v, v), &mut out[1]);
        s.store(tanh(s, v), &mut out[2]);
        s.store(softplus(s, v), &mut out[3]);
        s.store(exp_bf16(s, s.min(s.splat(0.0), v)), &mut out[4]);
        bits(out.as_flattened())
    }

    crate::simd::shells! { mod shells = all_functions(x: &[f32; 16]) -> Vec<u32> }

    #[test]
    fn every_instruction_set_returns_the_bits_of_the_scalar_functions() {
        let mut random = Random::new(11);
        let hostile = hostile_floats();
        for _ in 0..20_000 {
            let x: [f32; 16] = std::array::from_fn(|_| match random.below(8) {
                0 => hostile[random.below(hostile.len())],
                1 => random.any_bits(),
                _ => random.unit() * 110.0,
            });
            // SAFETY: the scalar shell needs no instruction set.
            let expected = unsafe { shells::scalar(&x) };
            for kernels in crate::Kernels::available() {
                let got = match kernels.name {
                    // SAFETY: the kernels of that name are available on this CPU.
                    #[cfg(target_arch = "x86_64")]
                    "avx512" => unsafe { shells::avx512(&x) },
                    // SAFETY: as above.
                    #[cfg(target_arch = "x86_64")]
                    "avx2" => unsafe { shells::avx2(&x) },
                    _ => continue,
                };
                assert_eq!(got, expected, "{} at {x:?}", kernels.name);
            }
        }
    }

    #[test]
    fn tanh_is_close_to_the_true_one() {
        for i in -2000..2000 {
            let x = i as f32 * 0.01;
            let mut out = [0.0; 16];
            Scalar.store(tanh(Scalar, [x; 16]), &mut out);
            assert!((f64::from(out[0]) - f64::from(x).tanh()).abs() < 2e-7, "{x}");
        }
    }
}
