//! `TQ2_0`: blocks of 256 weights of -1, 0 or 1 times one half-precision scale, two bits each;
//! 2.0625 bits per weight. For models that were trained with such weights.
//!
//! ```text
//! byte 0..64     q, two bits each, see `pairs`
//! byte 64..66    d     f16, amax
//! q[i] = round(w[i] / d) + 1, halves away from zero
//! w[i] = d * (q[i] - 1)
//! ```
//! A fourth value, 3, may stand in a file and means `2 d`.

use bytemuck::{Pod, Zeroable};
use half::f16;
use pelton_kernels::WeightLayout;
use pelton_tensor::DType;

use super::{BlockFormat, pairs, ternary};

/// Weights per block.
const BLOCK_LEN: usize = 256;

/// The format.
pub(super) struct Tq2_0;

/// One block as it lies in the file; alignment 1.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    q: [u8; BLOCK_LEN / 4],
    d: [u8; 2],
}

const _: () = assert!(size_of::<Block>() == 66 && align_of::<Block>() == 1);

impl BlockFormat for Tq2_0 {
    const DTYPE: DType = DType::Tq2_0;
    const LAYOUT: WeightLayout = WeightLayout::Tq2;
    type Block = Block;
    type Weights = [f32; BLOCK_LEN];

    fn quantize(weights: &Self::Weights, _: Option<&Self::Weights>, block: &mut Block) {
        let (d, q) = ternary::round(weights);
        *block = Block { q: pairs::store(&q), d: d.to_le_bytes() };
    }

    fn dequantize(block: &Block, weights: &mut Self::Weights) {
        let d = f16::from_le_bytes(block.d).to_f32();
        for (i, weight) in weights.iter_mut().enumerate() {
            *weight = d * (f32::from(pairs::load(&block.q, i)) - 1.0);
        }
    }

    fn relative_error() -> f32 {
        ternary::RELATIVE_ERROR
    }
}
