//! `Q8_0`: blocks of 32 weights, one half-precision scale and 32 signed bytes; 8.5 bits per weight.
//!
//! ```text
//! byte 0..2     d     f16, amax / 127
//! byte 2..34    q[i]  i8, round(w[i] / d), halves away from zero
//! w[i] = q[i] * d
//! ```
//! The quotients are taken with the scale in single precision, before it is rounded for storage;
//! that is how every writer of GGUF files does it, and the bits agree.

use bytemuck::{Pod, Zeroable};
use half::f16;
use pelton_kernels::WeightLayout;
use pelton_tensor::DType;

use super::{WeightFormat, check_sizes};

/// Weights per block.
const BLOCK_LEN: usize = 32;

/// The format.
pub(super) struct Q8_0;

/// One block as it lies in the file; alignment 1.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Block {
    d: [u8; 2],
    q: [i8; BLOCK_LEN],
}

const _: () = assert!(size_of::<Block>() == 34 && align_of::<Block>() == 1);

impl WeightFormat for Q8_0 {
    fn dtype(&self) -> DType {
        DType::Q8_0
    }

    fn layout(&self) -> WeightLayout {
        WeightLayout::Q8G32
    }

    fn quantize(&self, row: &[f32], out: &mut [u8]) {
        check_sizes(self.dtype(), row.len(), out.len());
        let blocks: &mut [Block] = bytemuck::cast_slice_mut(out);
        for (block, weights) in blocks.iter_mut().zip(row.as_chunks::<BLOCK_LEN>().0) {
            let amax = weights.iter().fold(0.0_f32, |amax, w| amax.max(w.abs()));
            let d = amax / 127.0;
            let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
            block.d = f16::from_f32(d).to_le_bytes();
            block.q = weights.map(|w| (w * inverse).round() as i8);
        }
    }

    fn dequantize(&self, blocks: &[u8], out: &mut [f32]) {
        check_sizes(self.dtype(), out.len(), blocks.len());
        let blocks: &[Block] = bytemuck::cast_slice(blocks);
        for (weights, block) in out.as_chunks_mut::<BLOCK_LEN>().0.iter_mut().zip(blocks) {
            let d = f16::from_le_bytes(block.d).to_f32();
            *weights = block.q.map(|q| f32::from(q) * d);
        }
    }

    fn relative_error(&self) -> f32 {
        // Half a step of 1/127, and the scale's own rounding on the largest weights.
        0.5 / 127.0 + 1.0 / 2048.0
    }
}
