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

use super::{WeightFormat, Weighted, check_sizes};
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
struct Block {
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

/// Fits `row`, whose inputs may differ in importance.
fn quantize(row: &[f32], inputs: Option<&[f32]>, out: &mut [u8]) {
    check_sizes(DType::Q6K, row.len(), out.len());
    let blocks: &mut [Block] = bytemuck::cast_slice_mut(out);
    let rows = row.as_chunks::<BLOCK_LEN>().0;
    for (i, (block, weights)) in blocks.iter_mut().zip(rows).enumerate() {
        let inputs = inputs.map(|inputs| &inputs.as_chunks::<BLOCK_LEN>().0[i]);
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
}

impl WeightFormat for Q6K {
    fn dtype(&self) -> DType {
        DType::Q6K
    }

    fn layout(&self) -> WeightLayout {
        WeightLayout::Q6K
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
            for (i, weight) in weights.iter_mut().enumerate() {
                let [low, low_shift, high, high_shift] = place(i);
                let low = block.q_low[low] >> low_shift & 15;
                let high = block.q_high[high] >> high_shift & 3;
                let scale = d * f32::from(block.scales[i / SUB_LEN]);
                *weight = scale * (f32::from(low | high << 4) - 32.0);
            }
        }
    }

    fn relative_error(&self) -> f32 {
        signed_error::<Integers<32>>(128.0)
    }
}
