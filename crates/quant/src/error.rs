//! Errors of tensors and settings that cannot become weights.

use pelton_tensor::{DType, MemoryRefused};

/// A tensor or a setting that cannot become weights; every message names it. The caller adds the
/// file.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantError {
    /// The element type has no weight format.
    #[error(
        "tensor `{tensor}`: weights of type {dtype} are not supported; convert the checkpoint to one \
         of {supported}"
    )]
    Unsupported {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: DType,
        /// Names of all supported types.
        supported: String,
    },
    /// The shape is not one that weights of this format can have.
    #[error("tensor `{tensor}`: expected {expected}, got shape {got:?} of {dtype}")]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: DType,
        /// Description of a shape that fits.
        expected: String,
        /// Shape of the tensor.
        got: Vec<usize>,
    },
    /// Two tensors that are to be stacked have different types.
    #[error(
        "tensor `{tensor}`: expected {expected} like `{first}`, with which it is stacked, got {got}"
    )]
    Mixed {
        /// The tensor that differs.
        tensor: String,
        /// The first tensor of the stack.
        first: String,
        /// The type of the first tensor.
        expected: DType,
        /// The type of this one.
        got: DType,
    },
    /// A tensor of a quantized matrix is missing, or does not agree with its method or with the
    /// other tensors of the matrix.
    #[error("tensor `{tensor}`: expected {expected}, got {got}")]
    Checkpoint {
        /// The tensor.
        tensor: String,
        /// Description of a tensor that fits.
        expected: String,
        /// Description of the tensor found.
        got: String,
    },
    /// A field of `quantization_config` that is missing, out of range or not supported.
    #[error("field `{field}`: expected {expected}, found {found}")]
    Setting {
        /// The field, with dots between levels.
        field: String,
        /// Description of the values that are supported.
        expected: String,
        /// The value found, shortened.
        found: String,
    },
    /// The system refuses the memory of a packed matrix.
    #[error("packing the weights: {source}")]
    Memory {
        /// The refusal.
        source: MemoryRefused,
    },
}

/// Result of turning tensors into weights.
pub type Result<T> = std::result::Result<T, QuantError>;
