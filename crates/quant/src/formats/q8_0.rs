//! `Q8_0`: blocks of 32 weights, one half-precision scale and 32 signed bytes; 8.5 bits per weight.
//!
//! ```text
//! byte 0..2     d     f16, amax / 127
//! byte 2..34    q[i]  i8, round(w[i] / d), halves away from zero
//! w[i] = q[i] * d
//! ```
//! The quotients are taken with the scale in single precision, before it is rounded for storage;
//! that is how every writer of GGUF files does it, and the bits agree.

use bytemuck::{Pod, Zeroable};
use half::f16;
use pelton_kernels::WeightLayout;
use pelton_tensor::DType;

use super::BlockFormat;

/// Weights per block.
const BLOCK_LEN: usize = 32;

/// The format.
pub(super) struct Q8_0;

/// One block as it lies in the file; alignment 1.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    d: [u8; 2],
    q: [i8; BLOCK_LEN],
}

const _: () = assert!(size_of::<Block>() == 34 && align_of::<Block>() == 1);

impl BlockFormat for Q8_0 {
    const DTYPE: DType = DType::Q8_0;
    const LAYOUT: WeightLayout = WeightLayout::Q8G32;
    type Block = Block;
    type Weights = [f32; BLOCK_LEN];

    fn quantize(weights: &Self::Weights, _: Option<&Self::Weights>, block: &mut Block) {
        let amax = weights.iter().fold(0.0_f32, |amax, w| amax.max(w.abs()));
        let d = amax / 127.0;
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        block.d = f16::from_f32(d).to_le_bytes();
        block.q = weights.map(|w| (w * inverse).round() as i8);
    }

    fn dequantize(block: &Block, weights: &mut Self::Weights) {
        let d = f16::from_le_bytes(block.d).to_f32();
        *weights = block.q.map(|q| f32::from(q) * d);
    }

    fn relative_error() -> f32 {
        // Half a step of 1/127, and the scale's own rounding on the largest weights.
        0.5 / 127.0 + 1.0 / 2048.0
    }
}
