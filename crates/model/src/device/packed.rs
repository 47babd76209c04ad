//! Matrices before and after they are packed.

use std::ops::Range;
use std::sync::Arc;

use pelton_quant::checkpoint::QuantizedTensor;
use pelton_tensor::{DType, MappedFile, TensorView};

/// Stored matrices that are stacked by rows and packed as one.
#[derive(Clone, Copy, Debug)]
pub enum MatrixSource<'a, 't> {
    /// Matrices of one stored type.
    Tensors(&'a [TensorView<'a>]),
    /// The same, rounded to another type row by row.
    Rounded(&'a [TensorView<'a>], DType),
    /// Matrices of a quantized checkpoint, inputs in the order of [`QuantizedTensor::order`].
    Quantized(&'a [&'a QuantizedTensor<'t>]),
}

/// How a matrix is stored, as far as its packed size depends on it.
#[derive(Clone, Copy, Debug)]
pub enum StoredMatrix<'a, 't> {
    /// A matrix `[n, k]` of one stored type.
    Tensor {
        /// The stored type.
        dtype: DType,
        /// `[n, k]`.
        shape: [usize; 2],
    },
    /// Matrices of a quantized checkpoint, stacked by rows.
    Quantized(&'a [&'a QuantizedTensor<'t>]),
}

/// Layout and size of a packed matrix.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PackedSize {
    /// Name of the layout.
    pub layout: &'static str,
    /// Bytes, padding included.
    pub n_bytes: u64,
}

/// A packed matrix as plain bytes.
#[derive(Clone, Copy, Debug)]
pub struct PackedBytes<'a> {
    /// Name of its layout.
    pub layout: &'static str,
    /// Outputs.
    pub n: usize,
    /// Inputs.
    pub k: usize,
    /// The matrix in its layout.
    pub bytes: &'a [u8],
}

/// The ability to keep packed matrices in a file, and to compute with them where they are mapped.
pub trait PackedForm<W> {
    /// Version of the packed layouts; changes whenever packing gives other bytes than before.
    fn layout_version(&self) -> u32;

    /// A matrix as bytes.
    fn describe<'w>(&self, weight: &'w W) -> PackedBytes<'w>;

    /// The matrix `[n, k]` whose bytes are a range of a file; `None` when the layout is not known,
    /// or the range is not one of the file, is not aligned or has another size than the matrix.
    fn restore(
        &self,
        layout: &str,
        n_k: [usize; 2],
        file: &Arc<MappedFile>,
        range: Range<usize>,
    ) -> Option<W>;

    /// Calls `f` once for each of `0..n`, on all threads.
    fn for_each(&self, n: usize, f: &(dyn Fn(usize) + Sync));
}
