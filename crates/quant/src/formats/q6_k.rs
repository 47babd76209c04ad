//! `Q6_K`: blocks of 256 weights in 16 sub-blocks of 16, each with its own scale of 8 bits; 6.5625
//! bits per weight.
//!
//! ```text
//! byte 0..128     low nibbles   in each half h of the block, i in 0..64:
//! byte 128..192   high pairs      low nibble of byte 64 h + i: q[128 h + i]; high: q[128 h + 64 + i]
//! byte 192..208   scales, i8      bits 2 p.. of byte 128 + 32 h + i: upper two of q[128 h + 32 p + i]
//! byte 208..210   d, f16
//! w[i] = (d * scale[i / 16]) * (q[i] - 32)
//! ```
//! As in `Q4_0`, the largest weight of a sub-block sits on -32 and the largest scale of a block on
//! -128, whatever their signs, since +32 and +128 do not exist.

use bytemuck::{Pod, Zeroable};
use half::f16;
use pelton_kernels::WeightLayout;
use pelton_tensor::DType;

use super::BlockFormat;
use crate::fit::{Integers, fit_signed_block, signed_error};

/// Weights per block.
const BLOCK_LEN: usize = 256;
/// Weights that share a scale, and such groups in a block.
const SUB_LEN: usize = 16;
const N_SUBS: usize = 16;

/// The format.
pub(super) struct Q6K;

/// One block as it lies in the file; alignment 1.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    q_low: [u8; BLOCK_LEN / 2],
    q_high: [u8; BLOCK_LEN / 4],
    scales: [i8; N_SUBS],
    d: [u8; 2],
}

const _: () = assert!(size_of::<Block>() == 210 && align_of::<Block>() == 1);

/// Where the bits of weight `i` lie: byte and shift of the low nibble, byte and shift of the high
/// pair.
fn place(i: usize) -> [usize; 4] {
    let (half, i) = (i / 128, i % 128);
    [64 * half + i % 64, i / 64 * 4, 32 * half + i % 32, i / 32 * 2]
}

impl BlockFormat for Q6K {
    const DTYPE: DType = DType::Q6K;
    const LAYOUT: WeightLayout = WeightLayout::Q6K;
    const IS_WEIGHTED: bool = true;
    type Block = Block;
    type Weights = [f32; BLOCK_LEN];

    fn quantize(weights: &Self::Weights, inputs: Option<&Self::Weights>, block: &mut Block) {
        let subs = bytemuck::cast_ref(weights);
        let inputs = inputs.map(bytemuck::cast_ref);
        let fit = fit_signed_block::<Integers<32>, SUB_LEN, N_SUBS>(subs, inputs, 128.0);
        *block = Block { d: fit.d.to_le_bytes(), scales: fit.scales, ..Block::zeroed() };
        for (i, &q) in fit.codes.as_flattened().iter().enumerate() {
            let [low, low_shift, high, high_shift] = place(i);
            block.q_low[low] |= (q & 15) << low_shift;
            block.q_high[high] |= q >> 4 << high_shift;
        }
    }

    fn dequantize(block: &Block, weights: &mut Self::Weights) {
        let d = f16::from_le_bytes(block.d).to_f32();
        for (i, weight) in weights.iter_mut().enumerate() {
            let [low, low_shift, high, high_shift] = place(i);
            let low = block.q_low[low] >> low_shift & 15;
            let high = block.q_high[high] >> high_shift & 3;
            let scale = d * f32::from(block.scales[i / SUB_LEN]);
            *weight = scale * (f32::from(low | high << 4) - 32.0);
        }
    }

    fn relative_error() -> f32 {
        signed_error::<Integers<32>>(128.0)
    }
}
