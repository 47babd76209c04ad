//! The selective scan (Gu and Dao, 2023: Mamba 1): every channel has a state of its own, each element of
//! which decays at a rate of its own.
//!
//! ```text
//! x ── input ──> | u | z |                                       one product
//! u ── convolution over time, silu ──> u
//! u ── selection ──> | dt | k | q |      normed in some families; k and q are B and C of the paper
//! dt ── step, softplus ──> dt per channel
//!
//! state of a channel h [state_dim]:   h = exp(dt A) h + dt u k
//!     o = hᵀ q + skip · u
//! o · silu(z) ── out ──> delta
//! ```

use super::kind::Stages;
use super::{Found, Kept, Kind, Linear, MixerKind, Norm, Packed, PlannedTensors};
use crate::arch::Part as Name;
use crate::device::Device;
use crate::error::ModelError;
use crate::export::Listing;
use crate::load::{LinearPlan, Lookup, NormPlan, Packer, Projection, Rows};
use crate::parameters::Parameters;
use crate::state::StateLayer;

/// A selective scan.
#[derive(Clone, Debug, PartialEq)]
pub struct SelectiveScan {
    /// Channels.
    pub channels: usize,
    /// Elements of the state of a channel.
    pub state_dim: usize,
    /// Elements of what a row's time steps are projected from.
    pub step_rank: usize,
    /// Taps of the convolution over the channels.
    pub taps: usize,
    /// Whether the convolution has a bias.
    pub conv_bias: bool,
    /// Whether the projections from and to the residual stream have a bias.
    pub bias: bool,
    /// Norms of what is selected: time steps, keys and queries, each by its root mean square.
    pub norms: SelectionNorms,
    /// Added to the mean square in these norms.
    pub norm_eps: f32,
}

/// Norms of time steps, keys and queries in a selective scan.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SelectionNorms {
    /// There are none: Mamba.
    Absent,
    /// They have no weights: Falcon Mamba.
    Bare,
    /// Each has a weight: Jamba.
    Weighted,
}

impl SelectiveScan {
    /// Elements of everything that is selected by the channels of a row: `[dt | k | q]`.
    pub fn selection_width(&self) -> usize {
        self.step_rank + 2 * self.state_dim
    }

    /// First element and width of time steps, keys and queries in what is selected.
    pub fn selected(&self) -> [[usize; 2]; 3] {
        let (rank, n) = (self.step_rank, self.state_dim);
        [[0, rank], [rank, n], [rank + n, n]]
    }
}

/// Packed weights of a selective scan.
#[derive(Debug)]
pub struct SelectiveWeights<B: Device> {
    /// `[2 channels, hidden]`.
    pub input: Linear<B>,
    /// Taps of the convolution, the earliest position first: `[taps, channels]`.
    pub conv: B::Vector,
    /// `[channels]`.
    pub conv_bias: Option<B::Vector>,
    /// `[step_rank + 2 state_dim, channels]`.
    pub selection: Linear<B>,
    /// Norms of time steps, keys and queries.
    pub norms: Option<[Norm<B>; 3]>,
    /// `[channels, step_rank]`, with a bias.
    pub step: Linear<B>,
    /// Rates of the decays, `-exp(A)`: `[state_dim, channels]`.
    pub rates: B::Vector,
    /// `[channels]`.
    pub skip: B::Vector,
    /// `[hidden, channels]`.
    pub out: Linear<B>,
}

/// Tensors of a selective scan.
pub struct SelectivePlan<'a> {
    input: LinearPlan<'a>,
    conv: NormPlan<'a>,
    conv_bias: Option<NormPlan<'a>>,
    selection: LinearPlan<'a>,
    norms: Option<[NormPlan<'a>; 3]>,
    step: LinearPlan<'a>,
    rates: NormPlan<'a>,
    /// Whether `rates` holds the rates themselves, and not their logarithms.
    are_rates: bool,
    skip: NormPlan<'a>,
    out: LinearPlan<'a>,
}

impl Kind for SelectiveScan {
    type Plan<'a> = SelectivePlan<'a>;
    type Weights<B: Device> = SelectiveWeights<B>;

    fn n_weights(&self, hidden_size: usize) -> usize {
        self.channels * (3 * hidden_size + self.selection_width() + self.step_rank)
    }

    fn parameters(&self, hidden_size: usize, _head_rows: usize) -> Parameters {
        let Self { channels, state_dim, step_rank, taps, .. } = *self;
        let selection = self.selection_width();
        Parameters::products(&[
            [2 * channels, hidden_size],
            [selection, channels],
            [channels, step_rank],
            [hidden_size, channels],
        ])
        .vector(true, (taps + state_dim + 2) * channels)
        .vector(self.conv_bias, channels)
        .vector(self.norms != SelectionNorms::Absent, selection)
        .vector(self.bias, 2 * channels + hidden_size)
    }
}

impl MixerKind for SelectiveScan {
    fn n_heads(&self) -> usize {
        1
    }

    fn kept(&self) -> Kept {
        let Self { channels, state_dim, taps, .. } = *self;
        Kept::state(StateLayer {
            n_key_heads: 1,
            n_value_heads: 1,
            key_dim: state_dim,
            value_dim: channels,
            channels,
            taps,
            is_selective: true,
            has_removal_keys: false,
            has_channel_decays: false,
        })
    }

    fn window(&self) -> Option<usize> {
        None
    }

    fn is_causal(&self) -> bool {
        true
    }

    fn query_width(&self) -> usize {
        2 * self.channels
    }

    fn out_width(&self) -> usize {
        self.channels
    }

    fn out<B: Device>(weights: &SelectiveWeights<B>) -> Option<&Linear<B>> {
        Some(&weights.out)
    }
}

impl<'a> Found<'a> for SelectivePlan<'a> {
    fn tensors(&self) -> PlannedTensors<'_, 'a> {
        let Self { input, conv, conv_bias, selection, norms, step, rates, skip, out, .. } = self;
        PlannedTensors {
            linears: vec![input, selection, step, out],
            by_head: Vec::new(),
            vectors: [conv, rates, skip]
                .into_iter()
                .chain(conv_bias)
                .chain(norms.iter().flatten())
                .collect(),
            n_made: 0,
        }
    }
}

impl<B: Device> Packed<B> for SelectiveWeights<B> {
    fn matrices(&self) -> Vec<&B::Weight> {
        let Self { input, selection, step, out, .. } = self;
        [input, selection, step, out].into_iter().flat_map(Linear::weights).collect()
    }

    fn inputs(&self) -> Vec<&Linear<B>> {
        vec![&self.input]
    }
}

impl Stages for SelectiveScan {
    fn plan<'a>(
        &self,
        lookup: &Lookup<'a, '_>,
        layer: usize,
    ) -> Result<SelectivePlan<'a>, ModelError> {
        let Self { channels, state_dim, .. } = *self;
        let hidden = lookup.spec.hidden_size;
        let all = |name, n| [Projection { name, rows: Rows::all(n) }];
        let names = [Name::StepNorm, Name::KeySelectionNorm, Name::QuerySelectionNorm];
        let norm = |i: usize| {
            let n = self.selected()[i][1];
            match self.norms {
                SelectionNorms::Weighted => lookup.weight_norm(names[i], layer, n),
                _ => Ok(NormPlan {
                    weights: Vec::new(),
                    bias: None,
                    rows: Rows::all(n),
                    offset: 0.0,
                }),
            }
        };
        let has_norms = self.norms != SelectionNorms::Absent;
        let selection = all(Name::Selection, self.selection_width());
        Ok(SelectivePlan {
            input: lookup.linear(
                layer,
                &all(Name::RecurrentIn, 2 * channels),
                hidden,
                self.bias,
            )?,
            conv: lookup.taps(Name::Conv, layer, [channels, self.taps])?,
            conv_bias: (self.conv_bias)
                .then(|| lookup.conv_bias(Name::Conv, layer, channels))
                .transpose()?,
            selection: lookup.linear(layer, &selection, channels, false)?,
            norms: match has_norms {
                true => Some([norm(0)?, norm(1)?, norm(2)?]),
                false => None,
            },
            step: lookup.linear(layer, &all(Name::Step, channels), self.step_rank, true)?,
            rates: lookup.table(Name::Decay, layer, [channels, state_dim])?,
            are_rates: lookup.stored.decays_are_rates,
            skip: lookup.vector(Name::Skip, layer, channels)?,
            out: lookup.linear(layer, &all(Name::RecurrentOut, hidden), channels, self.bias)?,
        })
    }

    fn pack<B: Device>(
        &self,
        plan: &SelectivePlan<'_>,
        packer: &mut Packer<'_, B>,
    ) -> Result<SelectiveWeights<B>, ModelError> {
        let taps = turned(&packer.read(&plan.conv)?, self.taps);
        let rates = turned(&packer.decay_rates(&plan.rates, plan.are_rates)?, self.state_dim);
        let mut norm = |norm: &NormPlan<'_>| {
            let weight = packer.vector(norm)?;
            Ok::<_, ModelError>(Norm { weight, bias: None, eps: self.norm_eps })
        };
        let norms = match &plan.norms {
            Some([step, key, query]) => Some([norm(step)?, norm(key)?, norm(query)?]),
            None => None,
        };
        Ok(SelectiveWeights {
            norms,
            conv: packer.put(&taps),
            conv_bias: plan.conv_bias.as_ref().map(|bias| packer.vector(bias)).transpose()?,
            rates: packer.put(&rates),
            skip: packer.vector(&plan.skip)?,
            input: packer.linear(&plan.input)?,
            selection: packer.linear(&plan.selection)?,
            step: packer.linear(&plan.step)?,
            out: packer.linear(&plan.out)?,
        })
    }

    fn list<'a>(
        &self,
        plan: SelectivePlan<'a>,
        layer: usize,
        list: &mut Listing<'a, '_>,
    ) -> Result<(), ModelError> {
        list.only(Name::RecurrentIn, layer, plan.input)?;
        list.taps(Name::Conv, layer, plan.conv, self.taps, None);
        list.bias(Name::Conv, layer, plan.conv_bias);
        list.only(Name::Selection, layer, plan.selection)?;
        let names = [Name::StepNorm, Name::KeySelectionNorm, Name::QuerySelectionNorm];
        for (name, norm) in names.into_iter().zip(plan.norms.into_iter().flatten()) {
            list.norm(name, layer, Some(norm), None);
        }
        list.only(Name::Step, layer, plan.step)?;
        let shape = vec![self.channels, self.state_dim];
        list.decays(layer, plan.rates, plan.are_rates, shape, None);
        list.bare(Name::Skip, layer, plan.skip, vec![self.channels]);
        list.only(Name::RecurrentOut, layer, plan.out)
    }
}

/// Rows of `width` as columns.
fn turned(rows: &[f32], width: usize) -> Vec<f32> {
    let column = |j: usize| rows.iter().skip(j).step_by(width).copied();
    (0..width).flat_map(column).collect()
}
