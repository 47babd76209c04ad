//! `Q4_0`: blocks of 32 weights, one half-precision scale and 32 nibbles; 4.5 bits per weight.
//!
//! ```text
//! byte 0..2     d     f16, m / -8, where m is the weight of largest magnitude, the first among equals
//! byte 2..18    low nibble of byte j: q[j]; high nibble: q[j + 16]
//! q[i] = min(15, trunc(w[i] / d + 8.5))
//! w[i] = (q[i] - 8) * d
//! ```
//! Dividing by -8 puts the extreme weight, whatever its sign, on the nibble 0, since -8 exists and
//! +8 does not. The scale is therefore often negative.

use bytemuck::{Pod, Zeroable};
use half::f16;
use pelton_kernels::WeightLayout;
use pelton_tensor::DType;

use super::BlockFormat;

/// Weights per block.
const BLOCK_LEN: usize = 32;

/// The format.
pub(super) struct Q4_0;

/// One block as it lies in the file; alignment 1.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    d: [u8; 2],
    q: [u8; BLOCK_LEN / 2],
}

const _: () = assert!(size_of::<Block>() == 18 && align_of::<Block>() == 1);

impl BlockFormat for Q4_0 {
    const DTYPE: DType = DType::Q4_0;
    const LAYOUT: WeightLayout = WeightLayout::Q4G32;
    type Block = Block;
    type Weights = [f32; BLOCK_LEN];

    fn quantize(weights: &Self::Weights, _: Option<&Self::Weights>, block: &mut Block) {
        let extreme =
            weights.iter().fold(0.0_f32, |max, &w| if w.abs() > max.abs() { w } else { max });
        let d = extreme / -8.0;
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        // The cast truncates, and saturates at zero.
        let q = weights.map(|w| ((w * inverse + 8.5) as u8).min(15));
        block.d = f16::from_f32(d).to_le_bytes();
        block.q = std::array::from_fn(|j| q[j] | q[j + BLOCK_LEN / 2] << 4);
    }

    fn dequantize(block: &Block, weights: &mut Self::Weights) {
        let d = f16::from_le_bytes(block.d).to_f32();
        let (low, high) = weights.split_at_mut(BLOCK_LEN / 2);
        for ((low, high), &byte) in low.iter_mut().zip(high).zip(&block.q) {
            *low = (f32::from(byte & 15) - 8.0) * d;
            *high = (f32::from(byte >> 4) - 8.0) * d;
        }
    }

    fn relative_error() -> f32 {
        // A weight of the other sign than the extreme one is clipped to 7/8 of it: one whole step.
        1.0 / 8.0 + 1.0 / 2048.0
    }
}
