//! Projections and norms as packed weights.

use std::ops::Range;

use crate::device::Device;

/// Matrix of the shape `[n, k]` with an optional bias; computes `x Wᵀ + b`.
///
/// Products of stretches of outputs are multiplied by factors where the family has such.
#[derive(Debug)]
pub struct Linear<B: Device> {
    /// The packed matrices that it consists of: one, unless stacked projections are stored in
    /// different formats, or one projection in blocks of inputs.
    pub pieces: Vec<Piece<B>>,
    /// The rows of the model's matrix that this process holds.
    pub shard: Shard,
    /// Stretches of outputs and the factors of their products, before the bias; ascending.
    pub factors: Box<[(Range<usize>, f32)]>,
    /// `[n]`.
    pub bias: Option<B::Vector>,
    /// Outputs.
    pub n: usize,
    /// Inputs.
    pub k: usize,
}

/// One packed matrix of a projection.
#[derive(Debug)]
pub struct Piece<B: Device> {
    /// The matrix.
    pub weight: B::Weight,
    /// The first output of the projection that it computes; its other outputs follow.
    pub first_row: usize,
    /// Input `j` of the piece is input `order[j]` of the projection; `None` where the inputs are
    /// those of the projection, in their order.
    pub order: Option<Box<[u32]>>,
    /// Whether its product is added to what earlier pieces computed for the same outputs, from
    /// other inputs.
    pub adds: bool,
}

/// The rows of a matrix of the model that one process holds.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Shard {
    /// The rows held.
    pub rows: Range<usize>,
    /// Rows of the whole matrix.
    pub n_rows: usize,
}

impl Shard {
    /// All rows of a matrix of `n_rows`.
    pub fn whole(n_rows: usize) -> Self {
        Self { rows: 0..n_rows, n_rows }
    }
}

impl<B: Device> Linear<B> {
    /// The packed matrices.
    pub fn weights(&self) -> impl Iterator<Item = &B::Weight> {
        self.pieces.iter().map(|piece| &piece.weight)
    }

    /// Whether some piece reads the inputs in another order than the projection has them.
    pub fn is_reordered(&self) -> bool {
        self.pieces.iter().any(|piece| piece.order.is_some())
    }
}

/// A norm: by the root of the mean square, or by mean and variance where there is a bias.
#[derive(Debug)]
pub struct Norm<B: Device> {
    /// `[width]`.
    pub weight: B::Vector,
    /// `[width]`; zeros for a layer norm without bias, `None` for an RMS norm.
    pub bias: Option<B::Vector>,
    /// Added to the mean square or variance.
    pub eps: f32,
}
