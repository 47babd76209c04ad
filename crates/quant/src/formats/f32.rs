//! `F32`: IEEE single precision, little endian; stored as it is.

use pelton_kernels::WeightLayout;
use pelton_tensor::DType;

use super::{WeightFormat, check_sizes};

/// The format.
pub(super) struct F32;

impl WeightFormat for F32 {
    fn dtype(&self) -> DType {
        DType::F32
    }

    fn layout(&self) -> WeightLayout {
        WeightLayout::F32
    }

    fn quantize(&self, row: &[f32], out: &mut [u8]) {
        check_sizes(self.dtype(), row.len(), out.len());
        for (bytes, weight) in out.as_chunks_mut().0.iter_mut().zip(row) {
            *bytes = weight.to_le_bytes();
        }
    }

    fn dequantize(&self, blocks: &[u8], out: &mut [f32]) {
        check_sizes(self.dtype(), out.len(), blocks.len());
        for (weight, &bytes) in out.iter_mut().zip(blocks.as_chunks().0) {
            *weight = f32::from_le_bytes(bytes);
        }
    }

    fn relative_error(&self) -> f32 {
        0.0
    }
}
