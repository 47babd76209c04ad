//! Conversion of heads from f32 to the stored type.
//!
//! ```text
//! bf16             nearest, ties to even; 0 below 2⁻⁵⁰            so that no sum of products is
//!                                                                subnormal (see attention)
//! f16, fp8         nearest, ties to even           4 bytes read, 2 or 1 written per element
//! int8             largest = max |x|               (on the bits: exact in any order, NaN > inf)
//!                  largest not finite -> scale = NaN, values 0        rows that attend become NaN
//!                  scale below 2⁻⁵⁰   -> scale = 0,   values 0        as for bf16
//!                  otherwise          -> scale = largest / 127
//!                                        value = round(x · (127 / largest))       in -127..=127
//! ```
//!
//! There is no order of summation: each element is converted alone.

use crate::simd::shells;
use crate::simd::{LANES, Simd};

/// Heads whose largest magnitude is below this are stored as zeros: with any smaller scale, a product
/// of a weight and a value could be subnormal.
const TINY: f32 = 127.0 * LEAST_FACTOR;

/// The conversions of one instruction set, between slices of equal lengths.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) to_bf16: unsafe fn(&[f32], &mut [u16]),
    pub(super) to_bf16_factors: unsafe fn(&[f32], &mut [u16]),
    /// The same of `x · factor` in place, as floats.
    pub(crate) round_to_factors: unsafe fn(&mut [f32], f32),
    pub(super) to_f16: unsafe fn(&[f32], &mut [u16]),
    pub(super) to_fp8: unsafe fn(&[f32], &mut [u8]),
    /// Converts `x · factor`, which is within the range.
    pub(super) to_i8: unsafe fn(&[f32], f32, &mut [i8]),
    pub(super) largest: unsafe fn(&[f32]) -> f32,
}

macro_rules! table {
    ($(#[$meta:meta])* $name:ident, $shell:ident) => {
        $(#[$meta])*
        pub(crate) static $name: Table = Table {
            to_bf16: to_bf16_shells::$shell,
            to_bf16_factors: to_bf16_factors_shells::$shell,
            round_to_factors: round_to_factors_shells::$shell,
            to_f16: to_f16_shells::$shell,
            to_fp8: to_fp8_shells::$shell,
            to_i8: to_i8_shells::$shell,
            largest: largest_shells::$shell,
        };
    };
}
table!(SCALAR, scalar);
table!(
    #[cfg(target_arch = "x86_64")]
    AVX2,
    avx2
);
table!(
    #[cfg(target_arch = "x86_64")]
    AVX512,
    avx512
);

/// Elements of bf16 with a smaller magnitude are stored as zeros.
const LEAST_FACTOR: f32 = f32::from_bits((127 - 50) << 23);

/// Writes a conversion by one of the stores of [`Simd`].
macro_rules! narrow {
    ($name:ident, $store:ident, $type:ty $(, zero below $least:ident)?) => {
        #[inline(always)]
        fn $name<S: Simd>(s: S, x: &[f32], out: &mut [$type]) {
            let (blocks, tail) = x.as_chunks::<LANES>();
            let (out_blocks, out_tail) = out.as_chunks_mut::<LANES>();
            for (x, out) in blocks.iter().zip(out_blocks) {
                let x = s.load(x);
                $(let x = s.zero_below(x, s.splat($least));)?
                s.$store(x, out);
            }
            if !tail.is_empty() {
                let mut lanes = [0; LANES];
                let x = s.load_part(tail, 0.0);
                $(let x = s.zero_below(x, s.splat($least));)?
                s.$store(x, &mut lanes);
                out_tail.copy_from_slice(&lanes[..tail.len()]);
            }
        }
    };
}
narrow!(to_bf16, store_bf16, u16);
narrow!(to_bf16_factors, store_bf16, u16, zero below LEAST_FACTOR);
narrow!(to_f16, store_f16, u16);
narrow!(to_fp8, store_fp8, u8);

/// Rounds `x · factor` as [`to_bf16_factors`] does, and widens it again.
#[inline(always)]
fn round_to_factors<S: Simd>(s: S, x: &mut [f32], factor: f32) {
    let (factor, least) = (s.splat(factor), s.splat(LEAST_FACTOR));
    let mut halves = [0; LANES];
    let (blocks, tail) = x.as_chunks_mut::<LANES>();
    for x in blocks {
        s.store_bf16(s.zero_below(s.mul(s.load(x), factor), least), &mut halves);
        s.store(s.load_bf16(&halves), x);
    }
    if !tail.is_empty() {
        let x = s.mul(s.load_part(tail, 0.0), factor);
        s.store_bf16(s.zero_below(x, least), &mut halves);
        s.store_part(s.load_bf16(&halves), tail);
    }
}

#[inline(always)]
fn to_i8<S: Simd>(s: S, x: &[f32], factor: f32, out: &mut [i8]) {
    let factor = s.splat(factor);
    let (blocks, tail) = x.as_chunks::<LANES>();
    let (out_blocks, out_tail) = out.as_chunks_mut::<LANES>();
    for (x, out) in blocks.iter().zip(out_blocks) {
        s.store_i8(s.mul(s.load(x), factor), out);
    }
    if !tail.is_empty() {
        let mut lanes = [0; LANES];
        s.store_i8(s.mul(s.load_part(tail, 0.0), factor), &mut lanes);
        out_tail.copy_from_slice(&lanes[..tail.len()]);
    }
}

/// The largest magnitude, NaN above infinity above numbers; 0 of nothing.
#[inline(always)]
fn largest<S: Simd>(_: S, x: &[f32]) -> f32 {
    // The bits of magnitudes are ordered as they are. The compiler widens this loop.
    f32::from_bits(x.iter().map(|x| x.to_bits() & 0x7fff_ffff).max().unwrap_or(0))
}

/// Factor to int8 and scale back of a head whose largest magnitude is `largest`.
pub(super) fn int8_factor_and_scale(largest: f32) -> (f32, f32) {
    if !largest.is_finite() {
        (0.0, f32::NAN)
    } else if largest < TINY {
        (0.0, 0.0)
    } else {
        (127.0 / largest, largest / 127.0)
    }
}

shells! { mod to_bf16_shells = to_bf16(x: &[f32], out: &mut [u16]) }
shells! { mod to_bf16_factors_shells = to_bf16_factors(x: &[f32], out: &mut [u16]) }
shells! { mod round_to_factors_shells = round_to_factors(x: &mut [f32], factor: f32) }
shells! { mod to_f16_shells = to_f16(x: &[f32], out: &mut [u16]) }
shells! { mod to_fp8_shells = to_fp8(x: &[f32], out: &mut [u8]) }
shells! { mod to_i8_shells = to_i8(x: &[f32], factor: f32, out: &mut [i8]) }
shells! { mod largest_shells = largest(x: &[f32]) -> f32 }
