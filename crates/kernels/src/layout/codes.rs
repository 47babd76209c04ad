//! Values that the codes of quantized weights stand for.
//!
//! Each table is defined here once: kernels multiply with these values, and `pelton-quant` reads
//! and writes files with them.

use half::f16;

use crate::simd::fp8_to_f32;

/// bitsandbytes' NF4: quantiles of the normal distribution, scaled to 1.
///
/// # Paper
///
/// Dettmers et al., *QLoRA*, 2023.
pub const NF4: [f32; 16] = [
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

/// bitsandbytes' FP4: 2 bits of exponent and 1 of mantissa, scaled to 1; the sign is the highest
/// bit of a code.
pub const FP4: [f32; 16] = with_negatives_f32([
    0.0,
    0.005_208_333_4,
    0.666_666_7,
    1.0,
    0.333_333_34,
    0.5,
    0.166_666_67,
    0.25,
]);

/// 4-bit floats with 2 bits of exponent and 1 of mantissa (OCP "E2M1"); the sign is the highest
/// bit of a code.
pub const E2M1: [f32; 16] = with_negatives_f32([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]);

/// Twice the values of [`E2M1`], as integers; its two zeros are one.
pub const TWICE_E2M1: [i8; 16] = with_negatives([0, 1, 2, 3, 4, 6, 8, 12]);

/// Values of GGUF `IQ4_NL` and `IQ4_XS`, ascending.
pub const IQ4: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Values of GGUF `IQ1_S` and `IQ1_M` in eighths: -1, 0 and 1, each an eighth more or less.
/// No weight has the codes of zero.
pub const IQ1: [i8; 8] = with_negatives([1, 7, 9, 0]);

/// Values of GGUF `IQ2_XXS`, `IQ2_XS` and `IQ2_S` in eighths. No weight has the codes of zero.
pub const IQ2: [i8; 8] = with_negatives([8, 25, 43, 0]);

/// Values of GGUF `IQ3_XXS` in quarters.
pub const IQ3_XXS: [i8; 16] = with_negatives([4, 12, 20, 28, 36, 44, 52, 62]);

/// Values of GGUF `IQ3_S`.
pub const IQ3_S: [i8; 16] = with_negatives([1, 3, 5, 7, 9, 11, 13, 15]);

/// Value of an 8-bit float with 4 bits of exponent (OCP "E4M3FN"): no infinities, and the codes
/// 0x7f and 0xff are NaN.
pub fn e4m3(code: u8) -> f32 {
    fp8_to_f32(code)
}

/// The E4M3 code of `x`, or `None` when `x` is NaN or no number of that type.
pub fn e4m3_code(x: f32) -> Option<u8> {
    let size = x.abs();
    let code = match size < 2_f32.powi(-6) {
        true => (size * 512.0) as u32,
        false => (size.to_bits() >> 20).wrapping_sub(120 << 3),
    };
    let code = u8::try_from(code).ok()? | if x.is_sign_negative() { 0x80 } else { 0 };
    (e4m3(code).to_bits() == x.to_bits()).then_some(code)
}

/// Value of an 8-bit float with 5 bits of exponent: the upper half of an IEEE half-precision
/// number.
pub fn e5m2(code: u8) -> f32 {
    f16::from_bits(u16::from(code) << 8).to_f32()
}

/// The values, and after them their negatives.
const fn with_negatives<const N: usize, const M: usize>(values: [i8; N]) -> [i8; M] {
    assert!(M == 2 * N, "a table holds the values and their negatives");
    let mut table = [0; M];
    let mut i = 0;
    while i < N {
        table[i] = values[i];
        table[N + i] = -values[i];
        i += 1;
    }
    table
}

/// The values, and after them their negatives, that of 0 being -0.
const fn with_negatives_f32(values: [f32; 8]) -> [f32; 16] {
    let mut table = [0.0; 16];
    let mut i = 0;
    while i < 8 {
        table[i] = values[i];
        table[8 + i] = -values[i];
        i += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_integers_are_twice_the_small_floats() {
        for (float, twice) in E2M1.into_iter().zip(TWICE_E2M1) {
            assert_eq!(2.0 * float, f32::from(twice));
        }
    }

    #[test]
    fn the_negative_half_of_a_table_mirrors_the_positive_one() {
        for table in [FP4, E2M1] {
            for (positive, negative) in table[..8].iter().zip(&table[8..]) {
                assert_eq!((-positive).to_bits(), negative.to_bits());
            }
        }
        assert_eq!(IQ2, [8, 25, 43, 0, -8, -25, -43, 0]);
    }

    #[test]
    fn small_floats_have_the_values_of_their_specification() {
        for (code, value) in [(0x38, 1.0), (0x39, 1.125), (0x7e, 448.0), (0xb8, -1.0)] {
            assert_eq!(e4m3(code), value, "{code:#x}");
        }
        for (code, value) in [(0x3c, 1.0), (0x3d, 1.25), (0x7b, 57344.0), (0xc0, -2.0)] {
            assert_eq!(e5m2(code), value, "{code:#x}");
        }
    }

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
