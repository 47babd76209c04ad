//! A short convolution between two gates (Liquid AI, 2025).
//!
//! ```text
//! x ── input ──> | b | c | u |      y = c · convolution(b · u)  ── out ──> delta
//! ```
//!
//! All that is kept of a sequence is the input of the convolution's last taps.

use super::kind::Stages;
use super::{Found, Kept, Kind, Linear, MixerKind, Packed, PlannedTensors};
use crate::arch::Part as Name;
use crate::device::Device;
use crate::error::ModelError;
use crate::export::Listing;
use crate::load::{LinearPlan, Lookup, NormPlan, Packer, Projection, Rows};
use crate::parameters::Parameters;
use crate::state::StateLayer;

/// A short convolution between two gates.
#[derive(Clone, Debug, PartialEq)]
pub struct ShortConv {
    /// Channels of the convolution.
    pub channels: usize,
    /// Taps of the convolution.
    pub taps: usize,
    /// Whether the projections and the convolution have a bias.
    pub bias: bool,
}

/// Packed weights of a short convolution.
#[derive(Debug)]
pub struct ShortConvWeights<B: Device> {
    /// `[3 channels, hidden]`.
    pub input: Linear<B>,
    /// Taps, the earliest position first: `[taps, channels]`.
    pub conv: B::Vector,
    /// `[channels]`.
    pub conv_bias: Option<B::Vector>,
    /// `[hidden, channels]`.
    pub out: Linear<B>,
}

/// Tensors of a short convolution.
pub struct ShortConvPlan<'a> {
    input: LinearPlan<'a>,
    conv: NormPlan<'a>,
    conv_bias: Option<NormPlan<'a>>,
    out: LinearPlan<'a>,
}

impl Kind for ShortConv {
    type Plan<'a> = ShortConvPlan<'a>;
    type Weights<B: Device> = ShortConvWeights<B>;

    fn n_weights(&self, hidden_size: usize) -> usize {
        4 * hidden_size * self.channels
    }

    fn parameters(&self, hidden_size: usize, _head_rows: usize) -> Parameters {
        let Self { channels, taps, bias } = *self;
        Parameters::products(&[[3 * channels, hidden_size], [hidden_size, channels]])
            .vector(true, taps * channels)
            .vector(bias, 3 * channels + channels + hidden_size)
    }
}

impl MixerKind for ShortConv {
    fn n_heads(&self) -> usize {
        1
    }

    fn kept(&self) -> Kept {
        let Self { channels, taps, .. } = *self;
        Kept::state(StateLayer { channels, taps, ..StateLayer::default() })
    }

    fn window(&self) -> Option<usize> {
        None
    }

    fn is_causal(&self) -> bool {
        true
    }

    fn query_width(&self) -> usize {
        3 * self.channels
    }

    fn out_width(&self) -> usize {
        self.channels
    }

    fn out<B: Device>(weights: &ShortConvWeights<B>) -> Option<&Linear<B>> {
        Some(&weights.out)
    }
}

impl<'a> Found<'a> for ShortConvPlan<'a> {
    fn tensors(&self) -> PlannedTensors<'_, 'a> {
        PlannedTensors {
            linears: vec![&self.input, &self.out],
            by_head: Vec::new(),
            vectors: [&self.conv].into_iter().chain(&self.conv_bias).collect(),
            n_made: 0,
        }
    }
}

impl<B: Device> Packed<B> for ShortConvWeights<B> {
    fn matrices(&self) -> Vec<&B::Weight> {
        [&self.input, &self.out].into_iter().flat_map(Linear::weights).collect()
    }

    fn inputs(&self) -> Vec<&Linear<B>> {
        vec![&self.input]
    }
}

impl Stages for ShortConv {
    fn plan<'a>(
        &self,
        lookup: &Lookup<'a, '_>,
        layer: usize,
    ) -> Result<ShortConvPlan<'a>, ModelError> {
        let (hidden, channels) = (lookup.spec.hidden_size, self.channels);
        let all = |name, n| [Projection { name, rows: Rows::all(n) }];
        let bias = || lookup.conv_bias(Name::Conv, layer, channels);
        Ok(ShortConvPlan {
            input: lookup.linear(layer, &all(Name::ConvIn, 3 * channels), hidden, self.bias)?,
            conv: lookup.taps(Name::Conv, layer, [channels, self.taps])?,
            conv_bias: self.bias.then(bias).transpose()?,
            out: lookup.linear(layer, &all(Name::ConvOut, hidden), channels, self.bias)?,
        })
    }

    fn pack<B: Device>(
        &self,
        plan: &ShortConvPlan<'_>,
        packer: &mut Packer<'_, B>,
    ) -> Result<ShortConvWeights<B>, ModelError> {
        let stored = packer.read(&plan.conv)?;
        let of_tap = |tap| stored.iter().skip(tap).step_by(self.taps).copied();
        let taps: Vec<f32> = (0..self.taps).flat_map(of_tap).collect();
        Ok(ShortConvWeights {
            conv: packer.put(&taps),
            conv_bias: plan.conv_bias.as_ref().map(|bias| packer.vector(bias)).transpose()?,
            input: packer.linear(&plan.input)?,
            out: packer.linear(&plan.out)?,
        })
    }

    fn list<'a>(
        &self,
        plan: ShortConvPlan<'a>,
        layer: usize,
        list: &mut Listing<'a, '_>,
    ) -> Result<(), ModelError> {
        list.only(Name::ConvIn, layer, plan.input)?;
        list.taps(Name::Conv, layer, plan.conv, self.taps, None);
        list.bias(Name::Conv, layer, plan.conv_bias);
        list.only(Name::ConvOut, layer, plan.out)
    }
}
