//! Projections and norms as packed weights.

use crate::backend::Backend;

/// Matrix of the shape `[n, k]` with an optional bias; computes `x Wᵀ + b`.
#[derive(Debug)]
pub struct Linear<B: Backend> {
    /// Packed matrices whose rows follow each other: one, unless stacked projections are stored
    /// in different formats, or in blocks of inputs.
    pub parts: Vec<B::Weight>,
    /// For each part its inputs where these are not those of the layer: input `j` of the part is
    /// input `order[j]` of the layer.
    pub orders: Vec<Option<Box<[u32]>>>,
    /// For each part whether its product is added to that of the part before: other inputs of the
    /// same rows.
    pub adds: Vec<bool>,
    /// `[n]`.
    pub bias: Option<B::Vector>,
    /// Outputs.
    pub n: usize,
    /// Inputs.
    pub k: usize,
}

impl<B: Backend> Linear<B> {
    /// Whether some part has not the inputs of the layer in their order.
    pub fn is_reordered(&self) -> bool {
        self.orders.iter().any(Option::is_some)
    }
}

/// A norm: by the root of the mean square, or by mean and variance where there is a bias.
#[derive(Debug)]
pub struct Norm<B: Backend> {
    /// `[width]`.
    pub weight: B::Vector,
    /// `[width]`; zeros for a layer norm without bias, `None` for an RMS norm.
    pub bias: Option<B::Vector>,
    /// Added to the mean square or variance.
    pub eps: f32,
}
