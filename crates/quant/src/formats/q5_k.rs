//! `Q5_K`: as `Q4_K` with a fifth bit for each weight; 5.5 bits per weight.
//!
//! ```text
//! byte 0..2      d       f16, step of the scales
//! byte 2..4      d_min   f16, step of the minima
//! byte 4..16     scales and mins, see `k_scales`
//! byte 16..48    bit j of byte i: the fifth bit of q[j][i]
//! byte 48..176   byte 32 g + i: low nibble of q[2 g][i], then that of q[2 g + 1][i]
//! w[j][i] = (d * scale[j]) * q[j][i] - (d_min * min[j])
//! ```

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
pub(super) struct Q5K;

/// One block as it lies in the file; alignment 1.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    d: [u8; 2],
    d_min: [u8; 2],
    scales: [u8; k_scales::N_BYTES],
    q_high: [u8; SUB_LEN],
    q_low: [[u8; SUB_LEN]; N_SUBS / 2],
}

const _: () = assert!(size_of::<Block>() == 176 && align_of::<Block>() == 1);

impl BlockFormat for Q5K {
    const DTYPE: DType = DType::Q5K;
    const LAYOUT: WeightLayout = WeightLayout::Q5K;
    const IS_WEIGHTED: bool = true;
    type Block = Block;
    type Weights = [f32; BLOCK_LEN];

    fn quantize(weights: &Self::Weights, inputs: Option<&Self::Weights>, block: &mut Block) {
        let subs = bytemuck::cast_ref(weights);
        let inputs = inputs.map(bytemuck::cast_ref);
        let fit = fit_affine_block::<SUB_LEN, N_SUBS>(subs, inputs, 31.0, k_scales::MAX);
        block.d = fit.d.to_le_bytes();
        block.d_min = fit.d_min.to_le_bytes();
        block.scales = k_scales::store(&fit.scales, &fit.mins);
        for (bytes, [a, b]) in block.q_low.iter_mut().zip(fit.q.as_chunks().0) {
            *bytes = std::array::from_fn(|i| a[i] & 15 | b[i] << 4);
        }
        block.q_high =
            std::array::from_fn(|i| (0..N_SUBS).fold(0, |byte, j| byte | fit.q[j][i] >> 4 << j));
    }

    fn dequantize(block: &Block, weights: &mut Self::Weights) {
        let d = f16::from_le_bytes(block.d).to_f32();
        let d_min = f16::from_le_bytes(block.d_min).to_f32();
        let (scales, mins) = k_scales::load(&block.scales);
        for (j, weights) in weights.as_chunks_mut::<SUB_LEN>().0.iter_mut().enumerate() {
            let scale = d * f32::from(scales[j]);
            let min = d_min * f32::from(mins[j]);
            *weights = std::array::from_fn(|i| {
                let low = block.q_low[j / 2][i] >> (j % 2 * 4) & 15;
                let high = block.q_high[i] >> j & 1;
                scale * f32::from(low | high << 4) - min
            });
        }
    }

    fn relative_error() -> f32 {
        affine_error(31.0, k_scales::MAX)
    }
}
