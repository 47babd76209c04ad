//! Channel mixers: kinds of perceptrons, as data.

pub use pelton_base::Act;

use super::Moe;

/// Channel mixers.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Mlp {
    /// `down(act(gate(x)) * up(x))`.
    Gated(GatedMlp),
    /// `down(act(up(x)))`.
    Plain(PlainMlp),
    /// Several gated perceptrons, of which each row goes through some.
    Moe(Moe),
}

/// A two-layer perceptron without a gate.
#[derive(Clone, Debug, PartialEq)]
pub struct PlainMlp {
    /// Width of the hidden layer, in elements.
    pub intermediate_size: usize,
    /// Activation of the hidden layer.
    pub act: Act,
    /// Whether both projections carry a bias.
    pub bias: bool,
}

/// A gated two-layer perceptron (Shazeer, 2020).
#[derive(Clone, Debug, PartialEq)]
pub struct GatedMlp {
    /// Width of the hidden layer, in elements.
    pub intermediate_size: usize,
    /// Activation of the gate.
    pub act: Act,
    /// Whether the three projections carry a bias.
    pub bias: bool,
}

impl Mlp {
    /// Width of the hidden layer, or of an expert's, in elements.
    pub fn intermediate_size(&self) -> usize {
        match self {
            Self::Gated(mlp) => mlp.intermediate_size,
            Self::Plain(mlp) => mlp.intermediate_size,
            Self::Moe(moe) => moe.expert.intermediate_size,
        }
    }

    /// Elements of all matrices, in a model of this width.
    pub fn n_weights(&self, hidden_size: usize) -> usize {
        match self {
            Self::Gated(mlp) => 3 * hidden_size * mlp.intermediate_size,
            Self::Plain(mlp) => 2 * hidden_size * mlp.intermediate_size,
            Self::Moe(moe) => moe.n_weights(hidden_size),
        }
    }

    /// Elements of the matrices that one row goes through, in a model of this width.
    pub fn n_active_weights(&self, hidden_size: usize) -> usize {
        match self {
            Self::Gated(_) | Self::Plain(_) => self.n_weights(hidden_size),
            Self::Moe(moe) => moe.n_active_weights(hidden_size),
        }
    }
}
