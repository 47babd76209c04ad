//! `Q5_0`: blocks of 32 weights, one half-precision scale and 5 bits per weight; 5.5 in all.
//!
//! ```text
//! byte 0..2     d     f16, m / -16, where m is the weight of largest magnitude, the first among equals
//! byte 2..6     bit i of a little-endian word: the fifth bit of q[i]
//! byte 6..22    low nibble of byte j: that of q[j]; high nibble: that of q[j + 16]
//! q[i] = min(31, trunc(w[i] / d + 16.5))
//! w[i] = d * (q[i] - 16)
//! ```

use bytemuck::{Pod, Zeroable};
use half::f16;
use pelton_kernels::WeightLayout;
use pelton_tensor::DType;

use super::BlockFormat;
use super::fifth_bit::{self, BLOCK_LEN, FiveBits};
use crate::fit::saturating_half;

/// The format.
pub(super) struct Q5_0;

/// One block as it lies in the file; alignment 1.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    d: [u8; 2],
    q: FiveBits,
}

const _: () = assert!(size_of::<Block>() == 22 && align_of::<Block>() == 1);

impl BlockFormat for Q5_0 {
    const DTYPE: DType = DType::Q5_0;
    const LAYOUT: WeightLayout = WeightLayout::Q5G32;
    type Block = Block;
    type Weights = [f32; BLOCK_LEN];

    fn quantize(weights: &Self::Weights, _: Option<&Self::Weights>, block: &mut Block) {
        let extreme =
            weights.iter().fold(0.0_f32, |max, &w| if w.abs() > max.abs() { w } else { max });
        let d = extreme / -16.0;
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        block.d = saturating_half(d).to_le_bytes();
        block.q = fifth_bit::store(&weights.map(|w| ((w * inverse + 16.5) as u8).min(31)));
    }

    fn dequantize(block: &Block, weights: &mut Self::Weights) {
        let d = f16::from_le_bytes(block.d).to_f32();
        *weights = fifth_bit::load(&block.q).map(|q| d * (f32::from(q) - 16.0));
    }

    fn relative_error() -> f32 {
        // A weight of the other sign than the extreme one is clipped to 15/16 of it: one whole
        // step.
        1.0 / 16.0 + 1.0 / 2048.0
    }
}
