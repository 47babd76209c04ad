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
}

/// Result of turning tensors into weights.
pub type Result<T> = std::result::Result<T, QuantError>;
