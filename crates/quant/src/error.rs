//! What can be wrong with a tensor that is to become weights.

use pelton_tensor::DType;

/// A tensor that cannot become weights; every message names it.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantError {
    /// The element type is known but nothing here computes with it.
    #[error("tensor `{tensor}`: weights of type {dtype} are not supported; supported: {supported}")]
    Unsupported {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: DType,
        /// Every type that is.
        supported: String,
    },
    /// The shape is not one that weights of this format can have.
    #[error("tensor `{tensor}`: expected {expected}, got shape {got:?} of {dtype}")]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: DType,
        /// What the shape must be.
        expected: String,
        /// What it is.
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
    /// One of the tensors of a quantized matrix is not what its method or its neighbours ask for.
    #[error("tensor `{tensor}`: expected {expected}, got {got}")]
    Checkpoint {
        /// The tensor.
        tensor: String,
        /// What it must be.
        expected: String,
        /// What it is.
        got: String,
    },
    /// A field of `quantization_config` that is missing, out of range or not supported.
    #[error("field `{field}`: expected {expected}, found {found}")]
    Setting {
        /// The field, with dots between levels.
        field: String,
        /// What it should be.
        expected: String,
        /// What it is.
        found: String,
    },
}

/// Result of turning tensors into weights.
pub type Result<T> = std::result::Result<T, QuantError>;
