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

use super::{WeightFormat, Weighted, check_sizes, pairs};
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
struct Block {
    scales: [u8; N_SUBS],
    q: [u8; BLOCK_LEN / 4],
    d: [u8; 2],
    d_min: [u8; 2],
}

const _: () = assert!(size_of::<Block>() == 84 && align_of::<Block>() == 1);

/// Fits `row`, whose inputs may differ in importance.
fn quantize(row: &[f32], inputs: Option<&[f32]>, out: &mut [u8]) {
    check_sizes(DType::Q2K, row.len(), out.len());
    let blocks: &mut [Block] = bytemuck::cast_slice_mut(out);
    let rows = row.as_chunks::<BLOCK_LEN>().0;
    for (i, (block, weights)) in blocks.iter_mut().zip(rows).enumerate() {
        let inputs = inputs.map(|inputs| &inputs.as_chunks::<BLOCK_LEN>().0[i]);
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
}

impl WeightFormat for Q2K {
    fn dtype(&self) -> DType {
        DType::Q2K
    }

    fn layout(&self) -> WeightLayout {
        WeightLayout::Q2K
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
            let d_min = f16::from_le_bytes(block.d_min).to_f32();
            for (i, weight) in weights.iter_mut().enumerate() {
                let scales = block.scales[i / SUB_LEN];
                let scale = d * f32::from(scales & 15);
                let min = d_min * f32::from(scales >> 4);
                *weight = scale * f32::from(pairs::load(&block.q, i)) - min;
            }
        }
    }

    fn relative_error(&self) -> f32 {
        affine_error(3.0, 15.0)
    }
}
