//! `Q4_1`: blocks of 32 weights, a half-precision scale and minimum and 32 nibbles; 5 bits per
//! weight.
//!
//! ```text
//! byte 0..2     d     f16, (largest - smallest) / 15
//! byte 2..4     min   f16, the smallest weight
//! byte 4..20    low nibble of byte j: q[j]; high nibble: q[j + 16]
//! q[i] = min(15, trunc((w[i] - min) / d + 0.5))
//! w[i] = (d * q[i]) + min
//! ```
//! Quotients are taken with parameters in single precision, as every writer of GGUF files does.

use bytemuck::{Pod, Zeroable};
use half::f16;
use pelton_kernels::WeightLayout;
use pelton_tensor::DType;

use super::BlockFormat;
use crate::fit::saturating_half;

/// Weights per block.
const BLOCK_LEN: usize = 32;

/// The format.
pub(super) struct Q4_1;

/// One block as it lies in the file; alignment 1.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    d: [u8; 2],
    min: [u8; 2],
    q: [u8; BLOCK_LEN / 2],
}

const _: () = assert!(size_of::<Block>() == 20 && align_of::<Block>() == 1);

impl BlockFormat for Q4_1 {
    const DTYPE: DType = DType::Q4_1;
    const LAYOUT: WeightLayout = WeightLayout::Q4G32Min;
    type Block = Block;
    type Weights = [f32; BLOCK_LEN];

    fn quantize(weights: &Self::Weights, _: Option<&Self::Weights>, block: &mut Block) {
        let min = weights.iter().copied().fold(f32::INFINITY, f32::min);
        let max = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let d = (max - min) / 15.0;
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        let q = weights.map(|w| (((w - min) * inverse + 0.5) as u8).min(15));
        block.d = saturating_half(d).to_le_bytes();
        block.min = saturating_half(min).to_le_bytes();
        block.q = std::array::from_fn(|j| q[j] | q[j + BLOCK_LEN / 2] << 4);
    }

    fn dequantize(block: &Block, weights: &mut Self::Weights) {
        let d = f16::from_le_bytes(block.d).to_f32();
        let min = f16::from_le_bytes(block.min).to_f32();
        let (low, high) = weights.split_at_mut(BLOCK_LEN / 2);
        for ((low, high), &byte) in low.iter_mut().zip(high).zip(&block.q) {
            *low = d * f32::from(byte & 15) + min;
            *high = d * f32::from(byte >> 4) + min;
        }
    }

    fn relative_error() -> f32 {
        // Half a step of 2/15; then the rounding of the minimum, and of the scale up to twice.
        0.5 * 2.0 / 15.0 + 3.0 / 2048.0
    }
}
