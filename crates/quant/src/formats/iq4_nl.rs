//! `IQ4_NL`: blocks of 32 weights, one half-precision scale and 32 nibbles that stand for values of
//! a table; 4.5 bits per weight.
//!
//! ```text
//! byte 0..2     d     f16
//! byte 2..18    low nibble of byte j: code[j]; high nibble: code[j + 16]
//! w[i] = d * TABLE[code[i]]
//! ```
//! Sixteen values that lie closer together near zero, where weights are many, err less than sixteen
//! equidistant ones.

use bytemuck::{Pod, Zeroable};
use half::f16;
use pelton_kernels::WeightLayout;
use pelton_tensor::DType;

use super::BlockFormat;
use super::iq4_table::{TABLE, Table};
use crate::fit::{Grid, fit_scale, saturating_half, signed_error};

/// Weights per block.
const BLOCK_LEN: usize = 32;

/// The format.
pub(super) struct Iq4Nl;

/// One block as it lies in the file; alignment 1.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Block {
    d: [u8; 2],
    codes: [u8; BLOCK_LEN / 2],
}

const _: () = assert!(size_of::<Block>() == 18 && align_of::<Block>() == 1);

impl BlockFormat for Iq4Nl {
    const DTYPE: DType = DType::Iq4Nl;
    const LAYOUT: WeightLayout = WeightLayout::Iq4Nl;
    const IS_WEIGHTED: bool = true;
    type Block = Block;
    type Weights = [f32; BLOCK_LEN];

    fn quantize(weights: &Self::Weights, inputs: Option<&Self::Weights>, block: &mut Block) {
        let d = saturating_half(fit_scale::<Table, BLOCK_LEN>(weights, inputs));
        let inverse = if d.to_f32() == 0.0 { 0.0 } else { 1.0 / d.to_f32() };
        let codes = weights.map(|w| Table::code(Table::nearest(w * inverse)));
        block.d = d.to_le_bytes();
        block.codes = std::array::from_fn(|j| codes[j] | codes[j + BLOCK_LEN / 2] << 4);
    }

    fn dequantize(block: &Block, weights: &mut Self::Weights) {
        let d = f16::from_le_bytes(block.d).to_f32();
        let (low, high) = weights.split_at_mut(BLOCK_LEN / 2);
        for ((low, high), &byte) in low.iter_mut().zip(high).zip(&block.codes) {
            *low = d * f32::from(TABLE[usize::from(byte & 15)]);
            *high = d * f32::from(TABLE[usize::from(byte >> 4)]);
        }
    }

    fn relative_error() -> f32 {
        signed_error::<Table>(f32::INFINITY)
    }
}
