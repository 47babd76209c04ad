//! `BF16`: bfloat16, the upper half of a single, little endian; rounded to nearest, ties to even.

use half::bf16;
use pelton_kernels::WeightLayout;
use pelton_tensor::DType;

use super::{WeightFormat, check_sizes};

/// The format.
pub(super) struct Bf16;

impl WeightFormat for Bf16 {
    fn dtype(&self) -> DType {
        DType::Bf16
    }

    fn layout(&self) -> WeightLayout {
        WeightLayout::Bf16
    }

    fn quantize(&self, row: &[f32], out: &mut [u8]) {
        check_sizes(self.dtype(), row.len(), out.len());
        for (bytes, &weight) in out.as_chunks_mut().0.iter_mut().zip(row) {
            *bytes = bf16::from_f32(weight).to_le_bytes();
        }
    }

    fn dequantize(&self, blocks: &[u8], out: &mut [f32]) {
        check_sizes(self.dtype(), out.len(), blocks.len());
        for (weight, &bytes) in out.iter_mut().zip(blocks.as_chunks().0) {
            *weight = bf16::from_le_bytes(bytes).to_f32();
        }
    }

    fn relative_error(&self) -> f32 {
        // Half a unit in the last of 8 bits.
        1.0 / 256.0
    }
}
