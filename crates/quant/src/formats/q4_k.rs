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

use super::k_scales::{self, N_SUBS, SUB_LEN};
use super::{WeightFormat, Weighted, check_sizes};
use crate::fit::{affine_error, fit_affine_block};

/// Weights per block.
const BLOCK_LEN: usize = 256;

/// The format.
pub(super) struct Q4K;

/// One block as it lies in the file; alignment 1.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Block {
    d: [u8; 2],
    d_min: [u8; 2],
    scales: [u8; k_scales::N_BYTES],
    q: [[u8; SUB_LEN]; N_SUBS / 2],
}

const _: () = assert!(size_of::<Block>() == 144 && align_of::<Block>() == 1);

/// Fits `row`, whose inputs may differ in importance.
fn quantize(row: &[f32], inputs: Option<&[f32]>, out: &mut [u8]) {
    check_sizes(DType::Q4K, row.len(), out.len());
    let blocks: &mut [Block] = bytemuck::cast_slice_mut(out);
    let rows = row.as_chunks::<BLOCK_LEN>().0;
    for (i, (block, weights)) in blocks.iter_mut().zip(rows).enumerate() {
        let inputs = inputs.map(|inputs| &inputs.as_chunks::<BLOCK_LEN>().0[i]);
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
}

impl WeightFormat for Q4K {
    fn dtype(&self) -> DType {
        DType::Q4K
    }

    fn layout(&self) -> WeightLayout {
        WeightLayout::Q4K
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
            let (scales, mins) = k_scales::load(&block.scales);
            for (j, weights) in weights.as_chunks_mut::<SUB_LEN>().0.iter_mut().enumerate() {
                let scale = d * f32::from(scales[j]);
                let min = d_min * f32::from(mins[j]);
                *weights = block.q[j / 2].map(|q| scale * f32::from(q >> (j % 2 * 4) & 15) - min);
            }
        }
    }

    fn relative_error(&self) -> f32 {
        affine_error(15.0, k_scales::MAX)
    }
}
