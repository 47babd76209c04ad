//! The traits of a kind of mixer.

use std::fmt::Debug;

use super::Linear;
use crate::device::Device;
use crate::error::ModelError;
use crate::export::Listing;
use crate::load::{LinearPlan, Lookup, NormPlan, Packer, Part};
use crate::parameters::Parameters;
use crate::state::StateLayer;

/// A kind of mixer; the type itself is its spec.
pub trait Kind: Clone + Debug + PartialEq {
    /// Its tensors in a model's files.
    type Plan<'a>: Found<'a>;

    /// Its packed weights on a device.
    type Weights<B: Device>: Packed<B>;

    /// Elements of all matrices, in a model of this width.
    fn n_weights(&self, hidden_size: usize) -> usize;

    /// Its parameters as they are packed, in a model of this width, with the rows of each head of a
    /// matrix of heads in multiples of `head_rows`.
    fn parameters(&self, hidden_size: usize, head_rows: usize) -> Parameters;
}

/// A kind of sequence mixer.
pub trait MixerKind: Kind {
    /// Query heads.
    fn n_heads(&self) -> usize;

    /// The memory that is kept of a sequence for later tokens.
    fn kept(&self) -> Kept;

    /// Attention window in tokens, or `None` for full attention.
    fn window(&self) -> Option<usize>;

    /// Whether a token sees only itself and the tokens before it.
    fn is_causal(&self) -> bool;

    /// Elements of a row of queries as attention reads it, with the row's keys and values where
    /// they lie beside them.
    fn query_width(&self) -> usize;

    /// Elements of a row that the output projection reads.
    fn out_width(&self) -> usize;

    /// The projection that adds to the residual stream; `None` where there is no mixer.
    fn out<B: Device>(weights: &Self::Weights<B>) -> Option<&Linear<B>>;
}

/// A kind of channel mixer.
pub trait MlpKind: Kind {
    /// Width of the hidden layer, or of an expert's, in elements.
    fn intermediate_size(&self) -> usize;

    /// Elements of the matrices that one row goes through, in a model of this width.
    fn n_active_weights(&self, hidden_size: usize) -> usize;

    /// Bytes of the matrices that one row goes through.
    fn active_bytes<B: Device>(&self, weights: &Self::Weights<B>) -> usize;
}

/// Tensors that were found in a model's files.
pub trait Found<'a> {
    /// Everything that packing reads.
    fn tensors(&self) -> PlannedTensors<'_, 'a>;
}

/// Packed weights of a mixer.
pub trait Packed<B: Device> {
    /// Every matrix.
    fn matrices(&self) -> Vec<&B::Weight>;

    /// The projections that read the layer's input.
    fn inputs(&self) -> Vec<&Linear<B>>;
}

/// The memory that a layer keeps of a sequence for later tokens.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Kept {
    /// Keys and values of every token, in pages.
    pub pages: Option<KvHeads>,
    /// A state of a fixed size.
    pub state: Option<StateLayer>,
}

impl Kept {
    /// Pages alone.
    pub fn pages(heads: KvHeads) -> Self {
        Self { pages: Some(heads), state: None }
    }

    /// A state alone.
    pub fn state(state: StateLayer) -> Self {
        Self { pages: None, state: Some(state) }
    }
}

/// The keys and values of a token that are kept for later tokens, in each layer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct KvHeads {
    /// Key and value heads.
    pub n: usize,
    /// Elements of a key.
    pub key_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// Whether a value is the beginning of its key.
    pub values_in_keys: bool,
}

impl KvHeads {
    /// Elements of a token that are stored.
    pub fn n_elements(&self) -> usize {
        let value_dim = if self.values_in_keys { 0 } else { self.value_dim };
        self.n * (self.key_dim + value_dim)
    }

    /// The least heads that there can be: of caches of models without any.
    pub(crate) const LEAST: Self = Self { n: 1, key_dim: 16, value_dim: 16, values_in_keys: false };
}

/// The steps of a kind from its spec to packed weights, and to a GGUF file.
pub(crate) trait Stages: Kind {
    /// Looks up the tensors of layer `layer`.
    fn plan<'a>(&self, lookup: &Lookup<'a, '_>, layer: usize)
    -> Result<Self::Plan<'a>, ModelError>;

    /// Packs the tensors for a device.
    fn pack<B: Device>(
        &self,
        plan: &Self::Plan<'_>,
        packer: &mut Packer<'_, B>,
    ) -> Result<Self::Weights<B>, ModelError>;

    /// Lists the tensors of layer `layer` under the names of a GGUF file.
    fn list<'a>(
        &self,
        plan: Self::Plan<'a>,
        layer: usize,
        list: &mut Listing<'a, '_>,
    ) -> Result<(), ModelError>;
}

/// The tensors of a plan, by what becomes of them.
#[derive(Default)]
pub struct PlannedTensors<'p, 'a> {
    /// Projections.
    pub(crate) linears: Vec<&'p LinearPlan<'a>>,
    /// Matrices with a block of rows for each head, which are packed by themselves.
    pub(crate) by_head: Vec<&'p Part<'a>>,
    /// Vectors that stay in f32.
    pub(crate) vectors: Vec<&'p NormPlan<'a>>,
    /// Elements of vectors that are in no file.
    pub(crate) n_made: usize,
}
