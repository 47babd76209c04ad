//! `Q4_K`: blocks of 256 weights in 8 sub-blocks of 32, each with its own scale and minimum of
//! 6 bits; 4.5 bits per weight.
//!
//! ```text
//! byte 0..2      d       f16, step of the scales
//! byte 2..4      d_min   f16, step of the minima
//! byte 4..16     scales and mins, see `k_scales`
//! byte 16..144   byte 32 g + i: low nibble q[2 g][i], high nibble q[2 g + 1][i]
//! w[j][i] = (d * scale[j]) * q[j][i] - (d_min * min[j])
//! ```
//! The products are exact: 11 bits of a half, 6 of a scale and 4 of a weight fit in 24. The
//! difference is rounded once, so that neither the order of the products nor a fused operation
//! changes a bit; that holds for all formats with scales of scales.

use bytemuck::{Pod, Zeroable};
use half::f16;
use pelton_kernels::WeightLayout;
use pelton_tensor::DType;

use super::BlockFormat;
use super::k_scales::{self, N_SUBS, SUB_LEN};
use crate::fit::{affine_error, fit_affine_block};

/// Weights per block.
const BLOCK_LEN: usize = 256;

/// The format.
pub(super) struct Q4K;

/// One block as it lies in the file; alignment 1.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    d: [u8; 2],
    d_min: [u8; 2],
    scales: [u8; k_scales::N_BYTES],
    q: [[u8; SUB_LEN]; N_SUBS / 2],
}

const _: () = assert!(size_of::<Block>() == 144 && align_of::<Block>() == 1);

impl BlockFormat for Q4K {
    const DTYPE: DType = DType::Q4K;
    const LAYOUT: WeightLayout = WeightLayout::Q4K;
    const IS_WEIGHTED: bool = true;
    type Block = Block;
    type Weights = [f32; BLOCK_LEN];

    fn quantize(weights: &Self::Weights, inputs: Option<&Self::Weights>, block: &mut Block) {
        let subs = bytemuck::cast_ref(weights);
        let inputs = inputs.map(bytemuck::cast_ref);
        let fit = fit_affine_block::<SUB_LEN, N_SUBS>(subs, inputs, 15.0, k_scales::MAX);
        block.d = fit.d.to_le_bytes();
        block.d_min = fit.d_min.to_le_bytes();
        block.scales = k_scales::store(&fit.scales, &fit.mins);
        for (bytes, [low, high]) in block.q.iter_mut().zip(fit.q.as_chunks().0) {
            *bytes = std::array::from_fn(|i| low[i] | high[i] << 4);
        }
    }

    fn dequantize(block: &Block, weights: &mut Self::Weights) {
        let d = f16::from_le_bytes(block.d).to_f32();
        let d_min = f16::from_le_bytes(block.d_min).to_f32();
        let (scales, mins) = k_scales::load(&block.scales);
        for (j, weights) in weights.as_chunks_mut::<SUB_LEN>().0.iter_mut().enumerate() {
            let scale = d * f32::from(scales[j]);
            let min = d_min * f32::from(mins[j]);
            *weights = block.q[j / 2].map(|q| scale * f32::from(q >> (j % 2 * 4) & 15) - min);
        }
    }

    fn relative_error() -> f32 {
        affine_error(15.0, k_scales::MAX)
    }
}
