//! Numbers of 16 and 8 bits, one at a time: the specification of the narrow loads and stores.
//!
//! ```text
//! bf16   s eeeeeeee mmmmmmm        the upper half of an f32
//! fp8    s eeee mmm  (E4M3)        2^(e-7) · 1.m, or 2^-6 · 0.m where e = 0; up to 448
//!                                  no infinity; NaN is s 1111 111
//! ```
//!
//! All are rounded to nearest, ties to even, subnormals kept. bf16 overflows to infinity; fp8,
//! which has none, stops at 448. A NaN stays a NaN of its sign.
//!
//! # Paper
//!
//! Micikevicius et al., *FP8 Formats for Deep Learning*, 2022 (E4M3).

/// Largest fp8 number.
pub(crate) const FP8_MAX: f32 = 448.0;

/// Smallest fp8 number that is not subnormal, 2⁻⁶.
pub(crate) const FP8_NORMAL: f32 = 0.015_625;

/// 2¹⁴: a sum with it has the spacing of the fp8 subnormals, 2⁻⁹.
pub(crate) const FP8_ROUND: f32 = 16_384.0;

/// Bits of an f32 exponent above those of fp8, as they lie in an fp8: (127 - 7) << 3.
pub(crate) const FP8_BIAS: u32 = 120 << 3;

/// bf16 nearest to `x`, ties to even; a NaN stays a quiet NaN of the same sign.
pub(crate) fn bf16_from_f32(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// fp8 nearest to `x`, ties to even, at most 448 in magnitude; a NaN stays one.
pub(crate) fn fp8_from_f32(x: f32) -> u8 {
    let sign = (x.to_bits() >> 24) as u8 & 0x80;
    if x.is_nan() {
        return sign | 0x7f;
    }
    let size = x.abs().min(FP8_MAX);
    let code = if size < FP8_NORMAL {
        // Eighths of 2⁻⁶, rounded by the addition; eight of them are the smallest normal number.
        (size + FP8_ROUND).to_bits() - FP8_ROUND.to_bits()
    } else {
        let bits = size.to_bits();
        ((bits + 0x7_ffff + ((bits >> 20) & 1)) >> 20) - FP8_BIAS
    };
    sign | code as u8
}

/// The value of an fp8, exactly.
pub(crate) const fn fp8_to_f32(x: u8) -> f32 {
    let sign = (x as u32 & 0x80) << 24;
    let (exponent, mantissa) = (x as u32 >> 3 & 15, x as u32 & 7);
    let size = match (exponent, mantissa) {
        (15, 7) => f32::NAN,
        (0, m) => m as f32 * (1.0 / 512.0),
        (e, m) => f32::from_bits((e + 120) << 23 | m << 20),
    };
    f32::from_bits(size.to_bits() | sign)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, hostile_floats};

    #[test]
    fn bf16_is_rounded_as_the_half_crate_rounds_it() {
        let mut random = Random::new(3);
        for x in hostile_floats().into_iter().chain((0..100_000).map(|_| random.any_bits())) {
            let expected = half::bf16::from_f32(x);
            assert_eq!(bf16_from_f32(x), expected.to_bits(), "{x} {:#x}", x.to_bits());
        }
    }

    #[test]
    fn fp8_has_the_values_of_the_paper() {
        for (code, value) in [
            (0x00, 0.0),
            (0x01, 0.001_953_125),
            (0x07, 0.013_671_875),
            (0x08, 0.015_625),
            (0x38, 1.0),
            (0x39, 1.125),
            (0x7e, 448.0),
            (0xb8, -1.0),
        ] {
            assert_eq!(fp8_to_f32(code), value, "{code:#x}");
        }
        assert!(fp8_to_f32(0x7f).is_nan() && fp8_to_f32(0xff).is_nan());
        assert_eq!(fp8_to_f32(0x80).to_bits(), (-0.0_f32).to_bits());
    }

    /// The nearest of all values, the even code among two, by comparing with every one.
    fn nearest(x: f32) -> u8 {
        let sign = if x.is_sign_negative() { 0x80 } else { 0 };
        let distance = |code: u8| (f64::from(fp8_to_f32(code)) - f64::from(x.abs())).abs();
        let best = (0..=0x7e_u8)
            .min_by(|&a, &b| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1))));
        sign | best.expect("codes")
    }

    #[test]
    fn fp8_is_the_nearest_value_of_all_and_the_even_one_of_two() {
        let mut random = Random::new(4);
        let mut samples = hostile_floats();
        // Every value, the middle of every two, and their neighbours.
        for code in 0..0x7e {
            let (a, b) = (fp8_to_f32(code), fp8_to_f32(code + 1));
            for x in [a, (a + b) / 2.0] {
                samples.extend([x, -x, x.next_up(), x.next_down(), -x.next_up()]);
            }
        }
        samples.extend([448.0, 463.9, 464.0, 465.0, 480.0, 500.0]);
        samples.extend((0..20_000).map(|_| random.normal() * 20.0));
        samples.extend((0..20_000).map(|_| random.normal() * 0.01));
        for x in samples {
            if x.is_nan() {
                assert_eq!(fp8_from_f32(x) & 0x7f, 0x7f);
                continue;
            }
            let clamped = x.clamp(-FP8_MAX, FP8_MAX);
            assert_eq!(fp8_from_f32(x), nearest(clamped), "{x} {:#x}", x.to_bits());
        }
    }
}
