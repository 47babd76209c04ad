//! `IQ4_XS`: blocks of 256 weights in 8 sub-blocks of 32, each with its own scale of 6 bits, with
//! the values of `IQ4_NL`; 4.25 bits per weight.
//!
//! ```text
//! byte 0..2      d        f16
//! byte 2..4      bits 2 j.. of a little-endian word: upper two of s[j]      s = scale + 32
//! byte 4..8      low nibble of byte g: that of s[2 g]; high nibble: that of s[2 g + 1]
//! byte 8..136    low nibble of byte 16 j + i: code[j][i]; high nibble: code[j][i + 16]
//! w[j][i] = (d * scale[j]) * TABLE[code[j][i]]
//! ```

use bytemuck::{Pod, Zeroable};
use half::f16;
use pelton_kernels::WeightLayout;
use pelton_tensor::DType;

use super::BlockFormat;
use super::iq4_table::{TABLE, Table};
use crate::fit::{fit_signed_block, signed_error};

/// Weights per block.
const BLOCK_LEN: usize = 256;
/// Weights that share a scale, and such groups in a block.
const SUB_LEN: usize = 32;
const N_SUBS: usize = 8;

/// The format.
pub(super) struct Iq4Xs;

/// One block as it lies in the file; alignment 1.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    d: [u8; 2],
    s_high: [u8; 2],
    s_low: [u8; N_SUBS / 2],
    codes: [[u8; SUB_LEN / 2]; N_SUBS],
}

const _: () = assert!(size_of::<Block>() == 136 && align_of::<Block>() == 1);

impl BlockFormat for Iq4Xs {
    const DTYPE: DType = DType::Iq4Xs;
    const LAYOUT: WeightLayout = WeightLayout::Iq4Xs;
    const IS_WEIGHTED: bool = true;
    type Block = Block;
    type Weights = [f32; BLOCK_LEN];

    fn quantize(weights: &Self::Weights, inputs: Option<&Self::Weights>, block: &mut Block) {
        let subs = bytemuck::cast_ref(weights);
        let inputs = inputs.map(bytemuck::cast_ref);
        let fit = fit_signed_block::<Table, SUB_LEN, N_SUBS>(subs, inputs, 32.0);
        let s = fit.scales.map(|scale| (scale + 32) as u8);
        let high = (0..N_SUBS).fold(0_u16, |word, j| word | u16::from(s[j] >> 4) << (2 * j));
        *block = Block {
            d: fit.d.to_le_bytes(),
            s_high: high.to_le_bytes(),
            s_low: std::array::from_fn(|g| s[2 * g] & 15 | s[2 * g + 1] << 4),
            codes: fit
                .codes
                .map(|codes| std::array::from_fn(|i| codes[i] | codes[i + SUB_LEN / 2] << 4)),
        };
    }

    fn dequantize(block: &Block, weights: &mut Self::Weights) {
        let d = f16::from_le_bytes(block.d).to_f32();
        let s_high = u16::from_le_bytes(block.s_high);
        for (j, weights) in weights.as_chunks_mut::<SUB_LEN>().0.iter_mut().enumerate() {
            let s_low = block.s_low[j / 2] >> (j % 2 * 4) & 15;
            let s = s_low | ((s_high >> (2 * j) & 3) as u8) << 4;
            let scale = d * (f32::from(s) - 32.0);
            let (low, high) = weights.split_at_mut(SUB_LEN / 2);
            for ((low, high), &byte) in low.iter_mut().zip(high).zip(&block.codes[j]) {
                *low = scale * f32::from(TABLE[usize::from(byte & 15)]);
                *high = scale * f32::from(TABLE[usize::from(byte >> 4)]);
            }
        }
    }

    fn relative_error() -> f32 {
        signed_error::<Table>(32.0)
    }
}
