//! Arithmetic whose bits do not depend on the machine.
//!
//! The exponential of the system's libm may differ in the last bit between versions, and between
//! CPUs of one version. A last bit can move a token across the drawn number, so we use our own.

/// Independent accumulators of a sum; element `i` goes to lane `i % LANES`.
const LANES: usize = 8;

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

/// Sum in f64 over striped lanes, which are then added in order.
pub(crate) fn sum(weights: &[f32]) -> f64 {
    let mut lanes = [0.0_f64; LANES];
    let (blocks, tail) = weights.as_chunks::<LANES>();
    for block in blocks {
        for (lane, &weight) in lanes.iter_mut().zip(block) {
            *lane += f64::from(weight);
        }
    }
    for (lane, &weight) in lanes.iter_mut().zip(tail) {
        *lane += f64::from(weight);
    }
    lanes.iter().sum()
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
