//! Perceptrons, with a gate (Shazeer, 2020) and without.

pub use pelton_base::Act;

use super::kind::Stages;
use super::{Found, Kind, Linear, MlpKind, Packed, PlannedTensors};
use crate::arch::Part as Name;
use crate::device::Device;
use crate::error::ModelError;
use crate::export::{Listing, gate_and_up};
use crate::load::{LinearPlan, Lookup, Packer, Projection, Rows};
use crate::parameters::Parameters;

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
    /// Where few gates stay: those above their mean by this many standard deviations, which is taken off
    /// them before the activation (Gemma Team, 2025: Gemma 3n).
    pub cut: Option<f32>,
}

/// Packed weights of one perceptron.
#[derive(Debug)]
pub struct TwoLayers<B: Device> {
    /// Gate and up stacked, `[2 ffn, hidden]`; `[ffn, hidden]` where there is no gate.
    pub up: Linear<B>,
    /// `[hidden, ffn]`.
    pub down: Linear<B>,
}

impl<B: Device> TwoLayers<B> {
    pub(super) fn linears(&self) -> [&Linear<B>; 2] {
        [&self.up, &self.down]
    }

    pub(super) fn n_bytes(&self) -> usize {
        self.linears().into_iter().flat_map(Linear::weights).map(B::weight_bytes).sum()
    }
}

impl<B: Device> Packed<B> for TwoLayers<B> {
    fn matrices(&self) -> Vec<&B::Weight> {
        self.linears().into_iter().flat_map(Linear::weights).collect()
    }

    fn inputs(&self) -> Vec<&Linear<B>> {
        vec![&self.up]
    }
}

/// Tensors of one perceptron.
pub struct TwoPlan<'a> {
    /// Gate and up, or up alone.
    pub(crate) up: LinearPlan<'a>,
    pub(crate) down: LinearPlan<'a>,
}

impl<'a> TwoPlan<'a> {
    pub(super) fn linears(&self) -> [&LinearPlan<'a>; 2] {
        [&self.up, &self.down]
    }

    pub(super) fn pack<B: Device>(
        &self,
        packer: &mut Packer<'_, B>,
    ) -> Result<TwoLayers<B>, ModelError> {
        Ok(TwoLayers { up: packer.linear(&self.up)?, down: packer.linear(&self.down)? })
    }

    /// The tensors of layer `layer`: `up` one after the other, and `Part::Down`.
    fn find(
        lookup: &Lookup<'a, '_>,
        layer: usize,
        up: &[Projection],
        intermediate_size: usize,
        bias: bool,
    ) -> Result<Self, ModelError> {
        let hidden = lookup.spec.hidden_size;
        let down = Projection { name: Name::Down, rows: Rows::all(hidden) };
        Ok(Self {
            up: lookup.linear(layer, up, hidden, bias)?,
            down: lookup.linear(layer, &[down], intermediate_size, bias)?,
        })
    }
}

impl<'a> Found<'a> for TwoPlan<'a> {
    fn tensors(&self) -> PlannedTensors<'_, 'a> {
        PlannedTensors { linears: self.linears().into(), ..Default::default() }
    }
}

/// The parameters of a perceptron whose first layer has `n_up` outputs, of which `ffn` remain.
fn two_layers(n_up: usize, ffn: usize, hidden: usize, bias: bool) -> Parameters {
    Parameters::products(&[[n_up, hidden], [hidden, ffn]]).vector(bias, n_up + hidden)
}

impl GatedMlp {
    /// Activation of the gate, that there is one, and where it is cut.
    pub fn shape(&self) -> (Act, bool, Option<f32>) {
        (self.act, true, self.cut)
    }

    /// The perceptron of the same width that multiplies by no gate.
    pub fn without_gate(&self) -> PlainMlp {
        let &Self { intermediate_size, act, bias, .. } = self;
        PlainMlp { intermediate_size, act, bias }
    }
}

impl Kind for GatedMlp {
    type Plan<'a> = TwoPlan<'a>;
    type Weights<B: Device> = TwoLayers<B>;

    fn n_weights(&self, hidden_size: usize) -> usize {
        3 * hidden_size * self.intermediate_size
    }

    fn parameters(&self, hidden_size: usize, _head_rows: usize) -> Parameters {
        two_layers(2 * self.intermediate_size, self.intermediate_size, hidden_size, self.bias)
    }
}

impl Kind for PlainMlp {
    type Plan<'a> = TwoPlan<'a>;
    type Weights<B: Device> = TwoLayers<B>;

    fn n_weights(&self, hidden_size: usize) -> usize {
        2 * hidden_size * self.intermediate_size
    }

    fn parameters(&self, hidden_size: usize, _head_rows: usize) -> Parameters {
        two_layers(self.intermediate_size, self.intermediate_size, hidden_size, self.bias)
    }
}

impl MlpKind for GatedMlp {
    fn intermediate_size(&self) -> usize {
        self.intermediate_size
    }

    fn n_active_weights(&self, hidden_size: usize) -> usize {
        self.n_weights(hidden_size)
    }

    fn active_bytes<B: Device>(&self, weights: &TwoLayers<B>) -> usize {
        weights.n_bytes()
    }
}

impl Stages for GatedMlp {
    fn plan<'a>(&self, lookup: &Lookup<'a, '_>, layer: usize) -> Result<TwoPlan<'a>, ModelError> {
        let (ffn, bias) = (self.intermediate_size, self.bias);
        let all = |name, n| Projection { name, rows: Rows::all(n) };
        let up = match lookup.stored.is_gate_up_fused {
            true => vec![all(Name::GateUp, 2 * ffn)],
            false => vec![all(Name::Gate, ffn), all(Name::Up, ffn)],
        };
        TwoPlan::find(lookup, layer, &up, ffn, bias)
    }

    fn list<'a>(
        &self,
        plan: TwoPlan<'a>,
        layer: usize,
        list: &mut Listing<'a, '_>,
    ) -> Result<(), ModelError> {
        let both = gate_and_up(plan.up);
        if list.naming.stored.is_gate_up_fused {
            list.stacked(Name::GateUp, layer, both.into(), None)?;
        } else {
            let [gate, up] = both;
            list.projection(Name::Gate, layer, gate, None)?;
            list.projection(Name::Up, layer, up, None)?;
        }
        list.only(Name::Down, layer, plan.down)
    }

    fn pack<B: Device>(
        &self,
        plan: &TwoPlan<'_>,
        packer: &mut Packer<'_, B>,
    ) -> Result<TwoLayers<B>, ModelError> {
        plan.pack(packer)
    }
}

impl MlpKind for PlainMlp {
    fn intermediate_size(&self) -> usize {
        self.intermediate_size
    }

    fn n_active_weights(&self, hidden_size: usize) -> usize {
        self.n_weights(hidden_size)
    }

    fn active_bytes<B: Device>(&self, weights: &TwoLayers<B>) -> usize {
        weights.n_bytes()
    }
}

impl Stages for PlainMlp {
    fn plan<'a>(&self, lookup: &Lookup<'a, '_>, layer: usize) -> Result<TwoPlan<'a>, ModelError> {
        let (ffn, bias) = (self.intermediate_size, self.bias);
        let up = Projection { name: Name::Up, rows: Rows::all(ffn) };
        TwoPlan::find(lookup, layer, &[up], ffn, bias)
    }

    fn list<'a>(
        &self,
        plan: TwoPlan<'a>,
        layer: usize,
        list: &mut Listing<'a, '_>,
    ) -> Result<(), ModelError> {
        list.only(Name::Up, layer, plan.up)?;
        list.only(Name::Down, layer, plan.down)
    }

    fn pack<B: Device>(
        &self,
        plan: &TwoPlan<'_>,
        packer: &mut Packer<'_, B>,
    ) -> Result<TwoLayers<B>, ModelError> {
        plan.pack(packer)
    }
}
