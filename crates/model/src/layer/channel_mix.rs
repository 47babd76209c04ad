//! The channel mix of RWKV-7 (Peng et al., 2025): a perceptron whose input is mixed with the row
//! before.
//!
//! ```text
//! x ── x + mix ∘ (the row before - x) ── key ── relu² ── value ──> delta
//! ```
//!
//! It reads the row before, so it carries information from one position to the next and keeps that
//! row in its state: a sequence mixer by itself, in a layer without another one.

use super::kind::Stages;
use super::time_mix::two_taps;
use super::{Found, Kept, Kind, Linear, MixerKind, Packed, PlannedTensors};
use crate::arch::Part as Name;
use crate::device::Device;
use crate::error::ModelError;
use crate::export::Listing;
use crate::load::{LinearPlan, Lookup, NormPlan, Packer, Projection, Rows};
use crate::parameters::Parameters;
use crate::state::StateLayer;

/// The channel mix of RWKV-7.
#[derive(Clone, Debug, PartialEq)]
pub struct ChannelMix {
    /// Width of the residual stream, in elements.
    pub channels: usize,
    /// Width of the hidden layer, in elements.
    pub intermediate_size: usize,
}

/// Packed weights of a channel mix.
#[derive(Debug)]
pub struct ChannelMixWeights<B: Device> {
    /// Factors of the row before and of the row itself: `[2, hidden]`.
    pub mix: B::Vector,
    /// `[ffn, hidden]`.
    pub key: Linear<B>,
    /// `[hidden, ffn]`.
    pub value: Linear<B>,
}

/// Tensors of a channel mix.
pub struct ChannelMixPlan<'a> {
    mix: NormPlan<'a>,
    key: LinearPlan<'a>,
    value: LinearPlan<'a>,
}

impl Kind for ChannelMix {
    type Plan<'a> = ChannelMixPlan<'a>;
    type Weights<B: Device> = ChannelMixWeights<B>;

    fn n_weights(&self, hidden_size: usize) -> usize {
        2 * hidden_size * self.intermediate_size
    }

    fn parameters(&self, hidden_size: usize, _head_rows: usize) -> Parameters {
        let ffn = self.intermediate_size;
        Parameters::products(&[[ffn, hidden_size], [hidden_size, ffn]])
            .vector(true, 2 * hidden_size)
    }
}

impl MixerKind for ChannelMix {
    fn n_heads(&self) -> usize {
        1
    }

    fn kept(&self) -> Kept {
        Kept::state(StateLayer { channels: self.channels, taps: 2, ..StateLayer::default() })
    }

    fn window(&self) -> Option<usize> {
        None
    }

    fn is_causal(&self) -> bool {
        true
    }

    /// Nothing is projected before rows are mixed with the rows before them.
    fn query_width(&self) -> usize {
        self.channels
    }

    fn out_width(&self) -> usize {
        self.intermediate_size
    }

    fn out<B: Device>(weights: &ChannelMixWeights<B>) -> Option<&Linear<B>> {
        Some(&weights.value)
    }
}

impl<'a> Found<'a> for ChannelMixPlan<'a> {
    fn tensors(&self) -> PlannedTensors<'_, 'a> {
        PlannedTensors {
            linears: vec![&self.key, &self.value],
            by_head: Vec::new(),
            vectors: vec![&self.mix],
            // A factor of the row itself for each of the row before.
            n_made: self.mix.rows.n,
        }
    }
}

impl<B: Device> Packed<B> for ChannelMixWeights<B> {
    fn matrices(&self) -> Vec<&B::Weight> {
        [&self.key, &self.value].into_iter().flat_map(Linear::weights).collect()
    }

    /// None: the key projection reads a mixture of the layer's input with the row before.
    fn inputs(&self) -> Vec<&Linear<B>> {
        Vec::new()
    }
}

impl Stages for ChannelMix {
    fn plan<'a>(
        &self,
        lookup: &Lookup<'a, '_>,
        layer: usize,
    ) -> Result<ChannelMixPlan<'a>, ModelError> {
        let (hidden, ffn) = (self.channels, self.intermediate_size);
        let linear =
            |name, n, k| lookup.linear(layer, &[Projection { name, rows: Rows::all(n) }], k, false);
        Ok(ChannelMixPlan {
            mix: lookup.vector(Name::ChannelMix, layer, hidden)?,
            key: linear(Name::Up, ffn, hidden)?,
            value: linear(Name::Down, hidden, ffn)?,
        })
    }

    fn pack<B: Device>(
        &self,
        plan: &ChannelMixPlan<'_>,
        packer: &mut Packer<'_, B>,
    ) -> Result<ChannelMixWeights<B>, ModelError> {
        let mix = two_taps(&packer.read(&plan.mix)?, self.channels);
        Ok(ChannelMixWeights {
            mix: packer.put(&mix),
            key: packer.linear(&plan.key)?,
            value: packer.linear(&plan.value)?,
        })
    }

    fn list<'a>(
        &self,
        plan: ChannelMixPlan<'a>,
        layer: usize,
        list: &mut Listing<'a, '_>,
    ) -> Result<(), ModelError> {
        list.norm(Name::ChannelMix, layer, Some(plan.mix), None);
        list.only(Name::Up, layer, plan.key)?;
        list.only(Name::Down, layer, plan.value)
    }
}
