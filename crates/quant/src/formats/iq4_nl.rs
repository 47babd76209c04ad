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

use super::iq4_table::{TABLE, Table};
use super::{WeightFormat, Weighted, check_sizes};
use crate::fit::{Grid, fit_scale, saturating_half, signed_error};

/// Weights per block.
const BLOCK_LEN: usize = 32;

/// The format.
pub(super) struct Iq4Nl;

/// One block as it lies in the file; alignment 1.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Block {
    d: [u8; 2],
    codes: [u8; BLOCK_LEN / 2],
}

const _: () = assert!(size_of::<Block>() == 18 && align_of::<Block>() == 1);

/// Fits `row`, whose inputs may differ in importance.
fn quantize(row: &[f32], inputs: Option<&[f32]>, out: &mut [u8]) {
    check_sizes(DType::Iq4Nl, row.len(), out.len());
    let blocks: &mut [Block] = bytemuck::cast_slice_mut(out);
    let rows = row.as_chunks::<BLOCK_LEN>().0;
    for (i, (block, weights)) in blocks.iter_mut().zip(rows).enumerate() {
        let inputs = inputs.map(|inputs| &inputs.as_chunks::<BLOCK_LEN>().0[i]);
        let d = saturating_half(fit_scale::<Table, BLOCK_LEN>(weights, inputs));
        let inverse = if d.to_f32() == 0.0 { 0.0 } else { 1.0 / d.to_f32() };
        let codes = weights.map(|w| Table::code(Table::nearest(w * inverse)));
        block.d = d.to_le_bytes();
        block.codes = std::array::from_fn(|j| codes[j] | codes[j + BLOCK_LEN / 2] << 4);
    }
}

impl WeightFormat for Iq4Nl {
    fn dtype(&self) -> DType {
        DType::Iq4Nl
    }

    fn layout(&self) -> WeightLayout {
        WeightLayout::Iq4Nl
    }

    fn quantize(&self, row: &[f32], out: &mut [u8]) {
        quantize(row, None, out);
    }

    fn weighted(&self) -> Option<Weighted> {
        Some(|row, inputs, out| quantize(row, Some(inputs), out))
    }

    fn dequantize(&self, blocks: &[u8], out: &mut [f32]) {
        check_sizes(self.dtype(), out.len(), blocks.len());
        let blocks: &[Block] = bytemuck::cast_slice(blocks);
        for (weights, block) in out.as_chunks_mut::<BLOCK_LEN>().0.iter_mut().zip(blocks) {
            let d = f16::from_le_bytes(block.d).to_f32();
            let (low, high) = weights.split_at_mut(BLOCK_LEN / 2);
            for ((low, high), &byte) in low.iter_mut().zip(high).zip(&block.codes) {
                *low = d * f32::from(TABLE[usize::from(byte & 15)]);
                *high = d * f32::from(TABLE[usize::from(byte >> 4)]);
            }
        }
    }

    fn relative_error(&self) -> f32 {
        signed_error::<Table>(f32::INFINITY)
    }
}
