//! `Q2_K`: blocks of 256 weights in 16 sub-blocks of 16, each with its own scale and minimum of
//! 4 bits; 2.625 bits per weight.
//!
//! ```text
//! byte 0..16     low nibble: scale[j], high nibble: min[j]
//! byte 16..80    q, two bits each, see `pairs`
//! byte 80..82    d       f16, step of the scales
//! byte 82..84    d_min   f16, step of the minima
//! w[i] = (d * scale[i / 16]) * q[i] - (d_min * min[i / 16])
//! ```

use bytemuck::{Pod, Zeroable};
use half::f16;
use pelton_kernels::WeightLayout;
use pelton_tensor::DType;

use super::{BlockFormat, pairs};
use crate::fit::{affine_error, fit_affine_block};

/// Weights per block.
const BLOCK_LEN: usize = 256;
/// Weights that share a scale, and such groups in a block.
const SUB_LEN: usize = 16;
const N_SUBS: usize = 16;

/// The format.
pub(super) struct Q2K;

/// One block as it lies in the file; alignment 1.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    scales: [u8; N_SUBS],
    q: [u8; BLOCK_LEN / 4],
    d: [u8; 2],
    d_min: [u8; 2],
}

const _: () = assert!(size_of::<Block>() == 84 && align_of::<Block>() == 1);

impl BlockFormat for Q2K {
    const DTYPE: DType = DType::Q2K;
    const LAYOUT: WeightLayout = WeightLayout::Q2K;
    const IS_WEIGHTED: bool = true;
    type Block = Block;
    type Weights = [f32; BLOCK_LEN];

    fn quantize(weights: &Self::Weights, inputs: Option<&Self::Weights>, block: &mut Block) {
        let subs = bytemuck::cast_ref(weights);
        let inputs = inputs.map(bytemuck::cast_ref);
        let fit = fit_affine_block::<SUB_LEN, N_SUBS>(subs, inputs, 3.0, 15.0);
        *block = Block {
            scales: std::array::from_fn(|j| fit.scales[j] | fit.mins[j] << 4),
            q: pairs::store(bytemuck::cast_ref(&fit.q)),
            d: fit.d.to_le_bytes(),
            d_min: fit.d_min.to_le_bytes(),
        };
    }

    fn dequantize(block: &Block, weights: &mut Self::Weights) {
        let d = f16::from_le_bytes(block.d).to_f32();
        let d_min = f16::from_le_bytes(block.d_min).to_f32();
        for (i, weight) in weights.iter_mut().enumerate() {
            let scales = block.scales[i / SUB_LEN];
            let scale = d * f32::from(scales & 15);
            let min = d_min * f32::from(scales >> 4);
            *weight = scale * f32::from(pairs::load(&block.q, i)) - min;
        }
    }

    fn relative_error() -> f32 {
        affine_error(3.0, 15.0)
    }
}
