//! `Q3_K`: blocks of 256 weights in 16 sub-blocks of 16, each with its own scale of 6 bits; 3.4375
//! bits per weight.
//!
//! ```text
//! byte 0..32      bit b of byte i: the upper bit of q[32 b + i]
//! byte 32..96     the lower two bits of q, see `pairs`
//! byte 96..108    s = scale + 32, 6 bits: byte k < 8: low nibble that of s[k], high that of s[k + 8]
//!                                         bits 2 p.. of byte 8 + k: upper two of s[k + 4 p]
//! byte 108..110   d, f16
//! w[i] = (d * scale[i / 16]) * (q[i] - 4)
//! ```

use bytemuck::{Pod, Zeroable};
use half::f16;
use pelton_kernels::WeightLayout;
use pelton_tensor::DType;

use super::{BlockFormat, pairs};
use crate::fit::{Integers, fit_signed_block, signed_error};

/// Weights per block.
const BLOCK_LEN: usize = 256;
/// Weights that share a scale, and such groups in a block.
const SUB_LEN: usize = 16;
const N_SUBS: usize = 16;

/// The format.
pub(super) struct Q3K;

/// One block as it lies in the file; alignment 1.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    q_high: [u8; BLOCK_LEN / 8],
    q_low: [u8; BLOCK_LEN / 4],
    scales: [u8; 12],
    d: [u8; 2],
}

const _: () = assert!(size_of::<Block>() == 110 && align_of::<Block>() == 1);

fn store_scales(scales: &[i8; N_SUBS]) -> [u8; 12] {
    let s = scales.map(|scale| (scale + 32) as u8);
    std::array::from_fn(|k| match k {
        0..8 => s[k] & 15 | s[k + 8] << 4,
        _ => (0..4).fold(0, |byte, p| byte | s[k - 8 + 4 * p] >> 4 << (2 * p)),
    })
}

fn load_scales(bytes: &[u8; 12]) -> [i8; N_SUBS] {
    std::array::from_fn(|j| {
        let low = bytes[j % 8] >> (j / 8 * 4) & 15;
        let high = bytes[8 + j % 4] >> (j / 4 * 2) & 3;
        (low | high << 4) as i8 - 32
    })
}

impl BlockFormat for Q3K {
    const DTYPE: DType = DType::Q3K;
    const LAYOUT: WeightLayout = WeightLayout::Q3K;
    const IS_WEIGHTED: bool = true;
    type Block = Block;
    type Weights = [f32; BLOCK_LEN];

    fn quantize(weights: &Self::Weights, inputs: Option<&Self::Weights>, block: &mut Block) {
        let subs = bytemuck::cast_ref(weights);
        let inputs = inputs.map(bytemuck::cast_ref);
        let fit = fit_signed_block::<Integers<4>, SUB_LEN, N_SUBS>(subs, inputs, 32.0);
        let q: &[u8; BLOCK_LEN] = bytemuck::cast_ref(&fit.codes);
        *block = Block {
            q_high: std::array::from_fn(|i| {
                (0..8).fold(0, |byte, b| byte | q[32 * b + i] >> 2 << b)
            }),
            q_low: pairs::store(&q.map(|q| q & 3)),
            scales: store_scales(&fit.scales),
            d: fit.d.to_le_bytes(),
        };
    }

    fn dequantize(block: &Block, weights: &mut Self::Weights) {
        let d = f16::from_le_bytes(block.d).to_f32();
        let scales = load_scales(&block.scales).map(|scale| d * f32::from(scale));
        for (i, weight) in weights.iter_mut().enumerate() {
            let high = block.q_high[i % 32] >> (i / 32) & 1;
            let q = pairs::load(&block.q_low, i) | high << 2;
            *weight = scales[i / SUB_LEN] * (f32::from(q) - 4.0);
        }
    }

    fn relative_error() -> f32 {
        signed_error::<Integers<4>>(32.0)
    }
}
