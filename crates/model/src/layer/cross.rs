//! Attention of a decoder to the source that its encoder has read (Vaswani et al., 2017).
//!
//! ```text
//! source rows ── k·v of this layer ──▶ pages of positions 0 .. n_source       once per sequence
//! own rows    ── q ──▶ softmax(scale · q kᵀ) v over all of these pages ── out ──▶ delta
//! ```
//!
//! A sequence's first positions are those of its source, its own tokens follow. The layer's own
//! self-attention keeps nothing for source positions and this layer nothing for own ones, so both store
//! their keys and values in one place of a block: a source costs no memory of its own kind, and is
//! shared, swapped and copied as all pages are.

use super::kind::Stages;
use super::{Found, Kept, Kind, KvHeads, Linear, MixerKind, Packed, PlannedTensors};
use crate::arch::Part as Name;
use crate::device::Device;
use crate::error::ModelError;
use crate::export::Listing;
use crate::load::{LinearPlan, Lookup, Packer, Projection, Rows};
use crate::parameters::Parameters;

/// Attention of a decoder to its encoder's rows.
#[derive(Clone, Debug, PartialEq)]
pub struct CrossAttention {
    /// Heads of queries, keys and values.
    pub n_heads: usize,
    /// Elements per head; even.
    pub head_dim: usize,
    /// Whether the projections carry a bias.
    pub bias: bool,
    /// Factor of the scores.
    pub scale: f32,
    /// The layer in whose place it keeps keys and values: the self-attention before it.
    pub kv_of: usize,
}

impl CrossAttention {
    /// Width of all heads together, in elements.
    pub fn width(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Keys and values of a source token.
    pub(crate) fn kv_heads(&self) -> KvHeads {
        let dim = self.head_dim;
        KvHeads { n: self.n_heads, key_dim: dim, value_dim: dim, values_in_keys: false }
    }
}

/// Packed weights of attention to a source.
#[derive(Debug)]
pub struct CrossAttentionWeights<B: Device> {
    /// Of the decoder's rows: `[width, hidden]`.
    pub q: Linear<B>,
    /// Of the encoder's rows, keys and values stacked: `[2 * width, hidden]`.
    pub kv: Linear<B>,
    /// `[hidden, width]`.
    pub out: Linear<B>,
}

/// Tensors of attention to a source.
pub struct CrossAttentionPlan<'a> {
    q: LinearPlan<'a>,
    kv: LinearPlan<'a>,
    out: LinearPlan<'a>,
}

impl Kind for CrossAttention {
    type Plan<'a> = CrossAttentionPlan<'a>;
    type Weights<B: Device> = CrossAttentionWeights<B>;

    fn n_weights(&self, hidden_size: usize) -> usize {
        4 * hidden_size * self.width()
    }

    fn parameters(&self, hidden_size: usize, _head_rows: usize) -> Parameters {
        let width = self.width();
        Parameters::products(&[[width, hidden_size], [hidden_size, width]])
            .and(Parameters::products(&[[2 * width, hidden_size]]).copied(1, 0))
            .vector(self.bias, 3 * width + hidden_size)
    }
}

impl MixerKind for CrossAttention {
    fn n_heads(&self) -> usize {
        self.n_heads
    }

    fn kept(&self) -> Kept {
        Kept::default()
    }

    fn window(&self) -> Option<usize> {
        None
    }

    fn is_causal(&self) -> bool {
        true
    }

    fn query_width(&self) -> usize {
        self.width()
    }

    fn out_width(&self) -> usize {
        self.width()
    }

    fn out<B: Device>(weights: &CrossAttentionWeights<B>) -> Option<&Linear<B>> {
        Some(&weights.out)
    }
}

impl<'a> Found<'a> for CrossAttentionPlan<'a> {
    fn tensors(&self) -> PlannedTensors<'_, 'a> {
        PlannedTensors { linears: vec![&self.q, &self.kv, &self.out], ..PlannedTensors::default() }
    }
}

impl<B: Device> Packed<B> for CrossAttentionWeights<B> {
    fn matrices(&self) -> Vec<&B::Weight> {
        [&self.q, &self.kv, &self.out].into_iter().flat_map(Linear::weights).collect()
    }

    fn inputs(&self) -> Vec<&Linear<B>> {
        // Keys and values are made of a norm's output as well: the encoder's last one.
        vec![&self.q, &self.kv]
    }
}

impl Stages for CrossAttention {
    fn plan<'a>(
        &self,
        lookup: &Lookup<'a, '_>,
        layer: usize,
    ) -> Result<CrossAttentionPlan<'a>, ModelError> {
        let (hidden, width) = (lookup.spec.hidden_size, self.width());
        let all = |name, n| Projection { name, rows: Rows::all(n) };
        let keys_and_values = [all(Name::CrossK, width), all(Name::CrossV, width)];
        Ok(CrossAttentionPlan {
            q: lookup.linear(layer, &[all(Name::CrossQ, width)], hidden, self.bias)?,
            kv: lookup.linear(layer, &keys_and_values, hidden, self.bias)?,
            out: lookup.linear(layer, &[all(Name::CrossO, hidden)], width, self.bias)?,
        })
    }

    fn pack<B: Device>(
        &self,
        plan: &CrossAttentionPlan<'_>,
        packer: &mut Packer<'_, B>,
    ) -> Result<CrossAttentionWeights<B>, ModelError> {
        Ok(CrossAttentionWeights {
            q: packer.linear(&plan.q)?,
            kv: packer.linear(&plan.kv)?,
            out: packer.linear(&plan.out)?,
        })
    }

    fn list<'a>(
        &self,
        _plan: CrossAttentionPlan<'a>,
        layer: usize,
        _list: &mut Listing<'a, '_>,
    ) -> Result<(), ModelError> {
        Err(ModelError::Export(format!(
            "layer {layer} attends to the rows of an encoder, which is not written as GGUF"
        )))
    }
}
