//! `F16`: IEEE half precision, little endian; rounded to nearest, ties to even. Magnitudes above
//! 65,504 become infinite, and below 2^-14 the spacing is constant, so the relative bound holds for
//! weights of ordinary size only.

use half::f16;
use half::slice::HalfFloatSliceExt;
use pelton_kernels::WeightLayout;
use pelton_tensor::DType;

use super::{WeightFormat, check_sizes};

/// Weights that are converted at once, several by one instruction. One after the other took 30 % of
/// the time in which `pelton convert` makes Q4_0 of them.
const RUN: usize = 64;

/// The format.
pub(super) struct F16;

impl WeightFormat for F16 {
    fn dtype(&self) -> DType {
        DType::F16
    }

    fn layout(&self) -> WeightLayout {
        WeightLayout::F16
    }

    fn quantize(&self, row: &[f32], out: &mut [u8]) {
        check_sizes(self.dtype(), row.len(), out.len());
        for (out, row) in out.chunks_mut(2 * RUN).zip(row.chunks(RUN)) {
            let mut halves = [f16::ZERO; RUN];
            halves[..row.len()].convert_from_f32_slice(row);
            for (bytes, half) in out.as_chunks_mut().0.iter_mut().zip(halves) {
                *bytes = half.to_le_bytes();
            }
        }
    }

    fn dequantize(&self, blocks: &[u8], out: &mut [f32]) {
        check_sizes(self.dtype(), out.len(), blocks.len());
        for (out, blocks) in out.chunks_mut(RUN).zip(blocks.chunks(2 * RUN)) {
            let mut halves = [f16::ZERO; RUN];
            for (half, &bytes) in halves.iter_mut().zip(blocks.as_chunks().0) {
                *half = f16::from_le_bytes(bytes);
            }
            halves[..out.len()].convert_to_f32_slice(out);
        }
    }

    fn relative_error(&self) -> f32 {
        // Half a unit in the last of 11 bits.
        1.0 / 2048.0
    }
}
