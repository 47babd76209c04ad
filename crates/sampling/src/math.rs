//! Arithmetic whose bits do not depend on the machine.
//!
//! The exponential of the system's libm may differ in the last bit between versions, and between
//! CPUs of one version. A last bit can move a token across the drawn number, so we use our own.

/// Independent accumulators of a sum; element `i` goes to lane `i % LANES`.
const LANES: usize = 8;
/// Weights per partial sum of many.
pub(crate) const BLOCK: usize = 1024;

/// `e^x` for `x <= 0`, within 2 units in the last place; 0 where the result is below 2⁻¹²⁶.
///
/// `x = n ln 2 + r` with `|r| <= ln 2 / 2`; `e^r` is a Taylor polynomial of degree 7, whose error
/// is below 2⁻²⁶, and `2^n` is made from bits. Only plain operations, so it vectorises and rounds
/// the same everywhere. NaN gives 0.
#[inline(always)]
pub(crate) fn exp_nonpositive(x: f32) -> f32 {
    const LN_2_HIGH: f32 = 0.693_359_4; // 355 / 512: exact when multiplied by a small integer.
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to an integer.
    const LOWEST: f32 = -87.0;

    // Written with a select on both sides so that the loop around it has no branch.
    let clamped = if x > LOWEST { x } else { LOWEST };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (clamped - n * LN_2_HIGH) - n * LN_2_LOW;
    let mut p = 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    // The low bits of `shifted` are n in two's complement; 2^n has the exponent field n + 127.
    let n_bits = shifted.to_bits().wrapping_sub(ROUND.to_bits());
    let power = f32::from_bits(n_bits.wrapping_add(127) << 23);
    if x > LOWEST { p * power } else { 0.0 }
}

/// The natural logarithm of a positive normal number, within some units in the last place.
///
/// `x = 2^n m` with `m` between √½ and √2; with `s = (m - 1) / (m + 1)`, `ln m` is `2 (s + s³/3 +
/// s⁵/5 + ...)`, whose term in `s²³` is below 2⁻⁵⁸. A subnormal number counts as 2⁻¹⁰²².
pub(crate) fn ln_positive(x: f64) -> f64 {
    const MANTISSA: u64 = (1 << 52) - 1;
    let bits = x.max(f64::MIN_POSITIVE).to_bits();
    let (mut n, mut m) =
        ((bits >> 52) as f64 - 1023.0, f64::from_bits(bits & MANTISSA | 1023 << 52));
    if m > std::f64::consts::SQRT_2 {
        (n, m) = (n + 1.0, m / 2.0);
    }
    let s = (m - 1.0) / (m + 1.0);
    let series = (0..11).rev().fold(0.0, |rest, i| rest * (s * s) + 1.0 / f64::from(2 * i + 1));
    n * std::f64::consts::LN_2 + 2.0 * s * series
}

/// `e^x` within some units in the last place; `x` below -708 or above 709 counts as that.
///
/// `x = n ln 2 + r` with `|r| <= ln 2 / 2`; the Taylor polynomial of `e^r` ends at `r¹³`, so its error
/// is below 2⁻⁵⁷. NaN gives NaN.
pub(crate) fn exp(x: f64) -> f64 {
    const LN_2_HIGH: f64 = 0.693_147_180_369_123_8; // Exact when multiplied by a small integer.
    const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    let x = x.clamp(-708.0, 709.0);
    let n = (x * std::f64::consts::LOG2_E).round();
    let r = (x - n * LN_2_HIGH) - n * LN_2_LOW;
    let series = (1..14).rev().fold(1.0, |rest, i| 1.0 + rest * r / f64::from(i));
    series * f64::from_bits(((n + 1023.0) as u64) << 52)
}

/// Sum in f64 over striped lanes, which are then added in order.
pub(crate) fn sum<T: Copy + Into<f64>>(weights: &[T]) -> f64 {
    let mut lanes = [0.0_f64; LANES];
    let (blocks, tail) = weights.as_chunks::<LANES>();
    for block in blocks {
        for (lane, &weight) in lanes.iter_mut().zip(block) {
            *lane += weight.into();
        }
    }
    for (lane, &weight) in lanes.iter_mut().zip(tail) {
        *lane += weight.into();
    }
    lanes.iter().sum()
}

/// The sums of `BLOCK` weights each.
pub(crate) fn block_sums<T: Copy + Into<f64>>(weights: &[T]) -> impl Iterator<Item = f64> {
    weights.chunks(BLOCK).map(sum)
}

/// Index of the weight in which `target` falls, and how far into it.
///
/// When rounding leaves `target` at or beyond the end, the last positive weight takes it; when
/// there is no positive weight, the first.
pub(crate) fn invert<T: Copy + Into<f64>>(weights: &[T], target: f64) -> (usize, f64) {
    walk(weights.iter().map(|&weight| weight.into()), target)
}

/// The same over the sums of blocks, and then in a block.
pub(crate) fn invert_blocks<T: Copy + Into<f64>>(
    weights: &[T],
    block_sums: impl Iterator<Item = f64>,
    target: f64,
) -> usize {
    let (block, rest) = walk(block_sums, target);
    let in_block = weights.chunks(BLOCK).nth(block).unwrap_or(&[]);
    block * BLOCK + invert(in_block, rest).0
}

fn walk(weights: impl Iterator<Item = f64>, mut target: f64) -> (usize, f64) {
    let mut last = (0, 0.0);
    for (idx, weight) in weights.enumerate() {
        if weight > 0.0 {
            if target < weight {
                return (idx, target);
            }
            last = (idx, weight);
            target -= weight;
        }
    }
    last
}

/// A logit that can be compared and subtracted: NaN becomes minus infinity, plus infinity the
/// largest finite number.
#[inline(always)]
pub(crate) fn tame(logit: f32) -> f32 {
    let logit = if logit.is_nan() { f32::NEG_INFINITY } else { logit };
    if logit > f32::MAX { f32::MAX } else { logit }
}

/// The largest logit; minus infinity when none is larger.
pub(crate) fn max(logits: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (blocks, tail) = logits.as_chunks::<LANES>();
    let larger = |a: f32, b: f32| if b > a { b } else { a }; // A NaN `b` is never larger.
    for block in blocks {
        for (lane, &logit) in lanes.iter_mut().zip(block) {
            *lane = larger(*lane, logit);
        }
    }
    tame(lanes.iter().chain(tail).fold(f32::NEG_INFINITY, |a, &b| larger(a, b)))
}

/// Index of the largest logit, the lowest among equals; 0 when all are minus infinity or NaN.
pub(crate) fn argmax(logits: &[f32]) -> usize {
    let max = max(logits);
    logits.iter().position(|&logit| tame(logit) == max).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_is_within_two_units_in_the_last_place() {
        let mut worst = 0.0_f64;
        for i in 0..=870_000 {
            let x = -(i as f32) * 1e-4;
            let exact = f64::from(x).exp();
            let got = exp_nonpositive(x);
            if exact > f64::from(f32::MIN_POSITIVE) && x > -87.0 {
                let ulp = f64::from(f32::from_bits((exact as f32).to_bits() + 1))
                    - f64::from(exact as f32);
                worst = worst.max((f64::from(got) - exact).abs() / ulp);
            }
        }
        assert!(worst < 2.0, "{worst} units");
        assert_eq!(exp_nonpositive(0.0), 1.0);
        for lost in [-87.5, -1e30, f32::NEG_INFINITY, f32::NAN] {
            assert_eq!(exp_nonpositive(lost), 0.0);
        }
    }

    #[test]
    fn the_logarithm_is_the_systems_but_for_the_last_bits() {
        for i in 1..200_000 {
            let x = f64::from(i) * f64::from(i) * 1e-9 + 1e-30;
            let (got, exact) = (ln_positive(x), x.ln());
            assert!((got - exact).abs() <= 4e-16 * exact.abs().max(0.5), "{x}: {got} of {exact}");
        }
        assert_eq!((ln_positive(1.0), ln_positive(0.0)), (0.0, ln_positive(f64::MIN_POSITIVE)));
        assert_eq!(ln_positive(0.3).to_bits(), 0xBFF3_4378_FCBD_A720);
    }

    #[test]
    fn the_exponential_of_a_wide_number_is_the_systems_but_for_the_last_bits() {
        for i in -70_000..70_000 {
            let x = f64::from(i) * 0.01;
            let (got, exact) = (exp(x), x.exp());
            assert!((got - exact).abs() <= 1e-15 * exact, "{x}: {got} of {exact}");
        }
        assert_eq!((exp(0.0), exp(-1e9), exp(1e9)), (1.0, exp(-708.0), exp(709.0)));
        assert!(exp(709.0).is_finite() && exp(f64::NAN).is_nan());
        assert_eq!(exp(0.3).to_bits(), 0.3_f64.exp().to_bits());
    }

    #[test]
    fn the_exponential_has_golden_bits() {
        let bits: Vec<u32> =
            [-0.1, -0.5, -1.0, -7.25, -50.0].map(|x| exp_nonpositive(x).to_bits()).to_vec();
        assert_eq!(bits, [0x3F67_A36D, 0x3F1B_4598, 0x3EBC_5AB2, 0x3A3A_2AFF, 0x1B69_2BEB]);
    }

    #[test]
    fn the_largest_is_found_whatever_surrounds_it() {
        for n in 1..40 {
            for at in 0..n {
                let mut logits = vec![-1.0; n];
                logits[at] = 2.0;
                if at + 1 < n {
                    logits[at + 1] = 2.0;
                    logits[n - 1] = f32::NAN;
                }
                if at > 0 {
                    logits[0] = f32::NAN;
                }
                assert_eq!(argmax(&logits), at, "{logits:?}");
            }
        }
        assert_eq!(argmax(&[f32::NAN, f32::NEG_INFINITY]), 0);
        assert_eq!(argmax(&[]), 0);
        assert_eq!(argmax(&[1.0, f32::INFINITY, f32::MAX]), 1);
    }
}
