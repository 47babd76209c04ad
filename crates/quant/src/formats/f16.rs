//! `F16`: IEEE half precision, little endian; rounded to nearest, ties to even. Magnitudes above
//! 65,504 become infinite, and below 2^-14 the spacing is constant, so the relative bound holds for
//! weights of ordinary size only.

use half::f16;
use pelton_kernels::WeightLayout;
use pelton_tensor::DType;

use super::{WeightFormat, check_sizes};

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
        for (bytes, &weight) in out.as_chunks_mut().0.iter_mut().zip(row) {
            *bytes = f16::from_f32(weight).to_le_bytes();
        }
    }

    fn dequantize(&self, blocks: &[u8], out: &mut [f32]) {
        check_sizes(self.dtype(), out.len(), blocks.len());
        for (weight, &bytes) in out.iter_mut().zip(blocks.as_chunks().0) {
            *weight = f16::from_le_bytes(bytes).to_f32();
        }
    }

    fn relative_error(&self) -> f32 {
        // Half a unit in the last of 11 bits.
        1.0 / 2048.0
    }
}
