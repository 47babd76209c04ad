//! `Q5_1`: blocks of 32 weights, a half-precision scale and minimum and 5 bits per weight; 6 in
//! all.
//!
//! ```text
//! byte 0..2     d     f16, (largest - smallest) / 31
//! byte 2..4     min   f16, the smallest weight
//! byte 4..8     bit i of a little-endian word: the fifth bit of q[i]
//! byte 8..24    low nibble of byte j: that of q[j]; high nibble: that of q[j + 16]
//! q[i] = min(31, trunc((w[i] - min) / d + 0.5))
//! w[i] = (d * q[i]) + min
//! ```

use bytemuck::{Pod, Zeroable};
use half::f16;
use pelton_kernels::WeightLayout;
use pelton_tensor::DType;

use super::BlockFormat;
use super::fifth_bit::{self, BLOCK_LEN, FiveBits};
use crate::fit::saturating_half;

/// The format.
pub(super) struct Q5_1;

/// One block as it lies in the file; alignment 1.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    d: [u8; 2],
    min: [u8; 2],
    q: FiveBits,
}

const _: () = assert!(size_of::<Block>() == 24 && align_of::<Block>() == 1);

impl BlockFormat for Q5_1 {
    const DTYPE: DType = DType::Q5_1;
    const LAYOUT: WeightLayout = WeightLayout::Q5G32Min;
    type Block = Block;
    type Weights = [f32; BLOCK_LEN];

    fn quantize(weights: &Self::Weights, _: Option<&Self::Weights>, block: &mut Block) {
        let min = weights.iter().copied().fold(f32::INFINITY, f32::min);
        let max = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let d = (max - min) / 31.0;
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        let q = weights.map(|w| (((w - min) * inverse + 0.5) as u8).min(31));
        block.d = saturating_half(d).to_le_bytes();
        block.min = saturating_half(min).to_le_bytes();
        block.q = fifth_bit::store(&q);
    }

    fn dequantize(block: &Block, weights: &mut Self::Weights) {
        let d = f16::from_le_bytes(block.d).to_f32();
        let min = f16::from_le_bytes(block.min).to_f32();
        *weights = fifth_bit::load(&block.q).map(|q| d * f32::from(q) + min);
    }

    fn relative_error() -> f32 {
        // Half a step of 2/31; then the rounding of the minimum, and of the scale up to twice.
        0.5 * 2.0 / 31.0 + 3.0 / 2048.0
    }
}
