//! `MXFP4`: blocks of 32 weights, one power of two and 32 four-bit floats; 4.25 bits per weight.
//! Open Compute Project, *Microscaling Formats (MX) Specification*, version 1.0.
//!
//! ```text
//! byte 0        e     the block's factor is 2^(e - 127)
//! byte 1..17    low nibble of byte j: code[j]; high nibble: code[j + 16]
//! code: sign, two bits of exponent, one of mantissa: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives
//! w[i] = 2^(e - 128) * (2 value(code[i]))
//! ```
//! The product has no rounding but at the ends of the range, where 2^(e - 128) is subnormal or the
//! product infinite. The value 255, which the specification reserves for NaN, is a factor like any
//! other in GGUF files. The code of -0 reads as +0 there, whose integers have no sign at zero.
//!
//! The specification puts the largest weight between 4 and 8, which clips what lies above 6. The
//! quantizer also tries the next larger factor and keeps the one of smaller squared error.

use bytemuck::{Pod, Zeroable};
use pelton_kernels::WeightLayout;
use pelton_kernels::codes::TWICE_E2M1;
use pelton_tensor::DType;

use super::BlockFormat;

/// Weights per block.
const BLOCK_LEN: usize = 32;

/// The format.
pub(super) struct Mxfp4;

/// One block as it lies in the file; alignment 1.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    e: u8,
    codes: [u8; BLOCK_LEN / 2],
}

const _: () = assert!(size_of::<Block>() == 17 && align_of::<Block>() == 1);

/// `2^(e - 128)`; the two smallest are subnormal.
fn half_factor(e: u8) -> f32 {
    match e {
        0 => f32::from_bits(0x0020_0000),
        1 => f32::from_bits(0x0040_0000),
        _ => f32::from_bits(u32::from(e - 1) << 23),
    }
}

/// The code nearest to `x`, twice a value; the smaller magnitude among equals.
fn nearest(x: f32) -> u8 {
    let magnitude = TWICE_E2M1[..8]
        .windows(2)
        .filter(|pair| x.abs() > 0.5 * f32::from(pair[0] + pair[1]))
        .count() as u8;
    if x < 0.0 && magnitude > 0 { magnitude + 8 } else { magnitude }
}

/// The codes of a block with the factor `e`, and the sum of their squared errors in units of the
/// factor.
fn round(weights: &[f32; BLOCK_LEN], e: u8) -> ([u8; BLOCK_LEN], f64) {
    let factor = f64::from(half_factor(e));
    let scaled = weights.map(|w| f64::from(w) / factor);
    let codes = scaled.map(|x| nearest(x as f32));
    let errors =
        scaled.iter().zip(codes).map(|(x, code)| x - f64::from(TWICE_E2M1[usize::from(code)]));
    (codes, errors.map(|error| error * error).sum())
}

/// The factor that puts `amax` between 4 and 8.
fn exponent(amax: f32) -> u8 {
    // Below the smallest normal float the exponent field is zero, and so is the factor's.
    let biased = (amax.to_bits() >> 23) as u8;
    biased.saturating_sub(2)
}

impl BlockFormat for Mxfp4 {
    const DTYPE: DType = DType::Mxfp4;
    const LAYOUT: WeightLayout = WeightLayout::Mxfp4;
    type Block = Block;
    type Weights = [f32; BLOCK_LEN];

    fn quantize(weights: &Self::Weights, _: Option<&Self::Weights>, block: &mut Block) {
        let amax = weights.iter().fold(0.0_f32, |amax, w| amax.max(w.abs()));
        let e = exponent(amax);
        let (codes, error) = round(weights, e);
        let (wide_codes, wide_error) = round(weights, e + 1);
        let is_wide = wide_error * 4.0 < error;
        let codes = if is_wide { wide_codes } else { codes };
        block.e = if is_wide { e + 1 } else { e };
        block.codes = std::array::from_fn(|j| codes[j] | codes[j + BLOCK_LEN / 2] << 4);
    }

    fn dequantize(block: &Block, weights: &mut Self::Weights) {
        let factor = half_factor(block.e);
        let (low, high) = weights.split_at_mut(BLOCK_LEN / 2);
        for ((low, high), &byte) in low.iter_mut().zip(high).zip(&block.codes) {
            *low = factor * f32::from(TWICE_E2M1[usize::from(byte & 15)]);
            *high = factor * f32::from(TWICE_E2M1[usize::from(byte >> 4)]);
        }
    }

    fn relative_error() -> f32 {
        // The largest weight, just below 8, is clipped to 6.
        0.25
    }
}
