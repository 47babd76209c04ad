//! Small floats: what their codes stand for.

use half::f16;

/// An 8-bit float with 4 bits of exponent (OCP "FN"): no infinities, 0x7f and 0xff are NaN.
pub(super) fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let magnitude = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * 2_f32.powi(-9),
        _ => (8.0 + mantissa) * 2_f32.powi(exponent - 10),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// The code of a number that [`e4m3`] gives; `None` for others, and NaN.
pub(super) fn e4m3_code(x: f32) -> Option<u8> {
    let size = x.abs();
    let code = match size < 2_f32.powi(-6) {
        true => (size * 512.0) as u32,
        false => (size.to_bits() >> 20).wrapping_sub(120 << 3),
    };
    let code = u8::try_from(code).ok()? | if x.is_sign_negative() { 0x80 } else { 0 };
    (e4m3(code).to_bits() == x.to_bits()).then_some(code)
}

/// An 8-bit float with 5 bits of exponent: the upper half of a number in half precision.
pub(super) fn e5m2(code: u8) -> f32 {
    f16::from_bits(u16::from(code) << 8).to_f32()
}

/// Floats of 4 bits with 2 bits of exponent and 1 of mantissa (OCP "E2M1"), the sign highest.
pub(super) const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// bitsandbytes' NF4: quantiles of the normal distribution.
pub(super) const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// bitsandbytes' FP4: 2 bits of exponent and 1 of mantissa, scaled to 1.
pub(super) const FP4: [f32; 16] = [
    0.0,
    0.005_208_333_4,
    0.666_666_7,
    1.0,
    0.333_333_34,
    0.5,
    0.166_666_67,
    0.25,
    -0.0,
    -0.005_208_333_4,
    -0.666_666_7,
    -1.0,
    -0.333_333_34,
    -0.5,
    -0.166_666_67,
    -0.25,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_8_bits_has_its_code_and_no_other_number_has_one() {
        for code in (0..=u8::MAX).filter(|code| code & 0x7f != 0x7f) {
            let number = e4m3(code);
            assert_eq!(e4m3_code(number), Some(code), "{number}");
            for bits in [number.to_bits() + 1, number.to_bits() | 1 << 19] {
                assert_eq!(e4m3_code(f32::from_bits(bits)), None, "beside {number}");
            }
        }
        for other in [f32::NAN, f32::INFINITY, 480.0, 449.0, 1e-4, f32::MIN_POSITIVE, 256.0 * 2.0] {
            assert_eq!(e4m3_code(other), None, "{other}");
        }
    }
}
