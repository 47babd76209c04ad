//! The time mix of RWKV-7 (Peng et al., 2025): a matrix per head, from which a key is taken out
//! that is not the key that is put in.
//!
//! ```text
//! x_i = x + mix_i ∘ (the row before - x)                           token shift, i of r w k v a g
//! r, k, v = receptance(x_r), key(x_k), value(x_v)
//! w = decay_up(tanh(decay_down(x_w)))        a = rate_up(rate_down(x_a))
//! g = gate_up(sigmoid(gate_down(x_g)))     v moves to the first layer's by sigmoid(residual(x_v))
//!
//! state of a head S [value, key], D = diag(exp(-exp(-1/2) sigmoid(w))), k̂ = k ∘ k_k / |k ∘ k_k|
//!     S = S D - (S k̂) (k̂ ∘ sigmoid(a))ᵀ + v (k ∘ (1 + (sigmoid(a) - 1) ∘ k_a))ᵀ
//!     o = norm(S r) + (r · (k ∘ bonus)) v
//! o ∘ g ── out ──> delta
//! ```
//!
//! A token shift is a convolution over time with two taps, so that the row before a border belongs
//! to the state as the inputs of other convolutions do.

use super::kind::Stages;
use super::{Found, Kept, Kind, Linear, MixerKind, Norm, Packed, PlannedTensors};
use crate::arch::Part as Name;
use crate::device::Device;
use crate::error::ModelError;
use crate::export::{Listing, Source};
use crate::load::{LinearPlan, Lookup, NormPlan, Packer, Part, Projection, Rows};
use crate::parameters::Parameters;
use crate::state::StateLayer;

/// The time mix of RWKV-7.
#[derive(Clone, Debug, PartialEq)]
pub struct TimeMix {
    /// Heads.
    pub n_heads: usize,
    /// Elements of a key and of a value of a head.
    pub head_dim: usize,
    /// Elements of the latent of decays.
    pub decay_rank: usize,
    /// Elements of the latent of in-context learning rates.
    pub rate_rank: usize,
    /// Elements of the latent of gates.
    pub gate_rank: usize,
    /// Elements of the latent that says how much of the first layer's values is mixed in; `None` in
    /// the first layer itself.
    pub residual_rank: Option<usize>,
    /// Added to the variance in the norm of a head's output.
    pub norm_eps: f32,
}

impl TimeMix {
    /// Inputs of projections that a row is mixed with the row before it for: r, w, k, v, a and g.
    pub const N_MIXES: usize = 6;

    /// Elements of a row of keys, or of values.
    pub fn width(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Shapes of the projections to latents and from them.
    fn latents(&self) -> impl Iterator<Item = usize> {
        let ranks = [self.decay_rank, self.rate_rank, self.gate_rank];
        ranks.into_iter().chain(self.residual_rank)
    }
}

/// A projection to a latent, and one from it.
#[derive(Debug)]
pub struct LowRank<B: Device> {
    /// `[rank, hidden]`.
    pub down: Linear<B>,
    /// `[width, rank]`.
    pub up: Linear<B>,
}

/// Packed weights of a time mix; all rows are `width` wide.
#[derive(Debug)]
pub struct TimeMixWeights<B: Device> {
    /// Factors of the row before and of the row itself for r, w, k, v, a and g: `[6, 2, hidden]`.
    pub mixes: B::Vector,
    /// `[width, hidden]`.
    pub receptance: Linear<B>,
    /// `[width, hidden]`.
    pub key: Linear<B>,
    /// `[width, hidden]`.
    pub value: Linear<B>,
    /// Decays before their sigmoid, with a bias.
    pub decay: LowRank<B>,
    /// In-context learning rates before their sigmoid, with a bias.
    pub rate: LowRank<B>,
    /// Gates, without a bias.
    pub gate: LowRank<B>,
    /// How much of the first layer's values is mixed in, before its sigmoid, with a bias; `None` in
    /// the first layer.
    pub residual: Option<LowRank<B>>,
    /// Factors of keys in removal keys.
    pub removal_scale: B::Vector,
    /// How much of its rate a key is multiplied with.
    pub rate_scale: B::Vector,
    /// Weight of a row's own value in its output.
    pub bonus: B::Vector,
    /// Norm of the output of each head by itself, with a weight and a bias.
    pub norm: Norm<B>,
    /// `[hidden, width]`.
    pub out: Linear<B>,
}

/// Tensors of a time mix.
pub struct TimeMixPlan<'a> {
    /// All in one tensor, or one for each of r, w, k, v, a and g.
    mixes: Vec<NormPlan<'a>>,
    receptance: LinearPlan<'a>,
    key: LinearPlan<'a>,
    value: LinearPlan<'a>,
    decay: LowRankPlan<'a>,
    rate: LowRankPlan<'a>,
    gate: LowRankPlan<'a>,
    residual: Option<LowRankPlan<'a>>,
    removal_scale: NormPlan<'a>,
    rate_scale: NormPlan<'a>,
    bonus: NormPlan<'a>,
    norm: [NormPlan<'a>; 2],
    out: LinearPlan<'a>,
}

/// Tensors of a projection to a latent and from it.
struct LowRankPlan<'a> {
    down: LinearPlan<'a>,
    up: LinearPlan<'a>,
    bias: Option<NormPlan<'a>>,
}

impl<'a> LowRankPlan<'a> {
    /// The same tensors once more.
    fn again(&self) -> Self {
        let linear = |plan: &LinearPlan<'a>| LinearPlan {
            parts: plan.parts.iter().map(|part| Part::whole(part.view)).collect(),
            biases: Vec::new(),
            k: plan.k,
            factors: Vec::new(),
            is_exact: plan.is_exact,
        };
        let bias = self.bias.as_ref().map(|bias| NormPlan {
            weights: bias.weights.clone(),
            bias: None,
            rows: bias.rows,
            offset: bias.offset,
        });
        Self { down: linear(&self.down), up: linear(&self.up), bias }
    }
}

impl<'a> TimeMixPlan<'a> {
    fn low_ranks(&self) -> impl Iterator<Item = &LowRankPlan<'a>> {
        [&self.decay, &self.rate, &self.gate].into_iter().chain(&self.residual)
    }
}

impl<B: Device> TimeMixWeights<B> {
    fn linears(&self) -> impl Iterator<Item = &Linear<B>> {
        let Self { receptance, key, value, decay, rate, gate, residual, out, .. } = self;
        let low = [decay, rate, gate].into_iter().chain(residual);
        let low = low.flat_map(|LowRank { down, up }| [down, up]);
        [receptance, key, value].into_iter().chain(low).chain([out])
    }
}

impl Kind for TimeMix {
    type Plan<'a> = TimeMixPlan<'a>;
    type Weights<B: Device> = TimeMixWeights<B>;

    fn n_weights(&self, hidden_size: usize) -> usize {
        let n_latents: usize = self.latents().sum();
        4 * hidden_size * self.width() + n_latents * (hidden_size + self.width())
    }

    fn parameters(&self, hidden_size: usize, _head_rows: usize) -> Parameters {
        let width = self.width();
        let square = Parameters::products(&[[width, hidden_size]; 3]);
        let all = self
            .latents()
            .fold(square, |all, rank| all.low_rank(rank, hidden_size).low_rank(width, rank));
        // Biases of decays and rates, three factors of keys, and the norm.
        all.and(Parameters::products(&[[hidden_size, width]]))
            .vector(true, 2 * Self::N_MIXES * hidden_size + 7 * width)
            .vector(self.residual_rank.is_some(), width)
    }
}

impl MixerKind for TimeMix {
    fn n_heads(&self) -> usize {
        self.n_heads
    }

    fn kept(&self) -> Kept {
        Kept::state(StateLayer {
            n_key_heads: self.n_heads,
            n_value_heads: self.n_heads,
            key_dim: self.head_dim,
            value_dim: self.head_dim,
            channels: self.width(),
            taps: 2,
            has_removal_keys: true,
            ..StateLayer::default()
        })
    }

    fn window(&self) -> Option<usize> {
        None
    }

    fn is_causal(&self) -> bool {
        true
    }

    /// Nothing is projected before rows are mixed with the rows before them.
    fn query_width(&self) -> usize {
        self.width()
    }

    fn out_width(&self) -> usize {
        self.width()
    }

    fn out<B: Device>(weights: &TimeMixWeights<B>) -> Option<&Linear<B>> {
        Some(&weights.out)
    }
}

impl<'a> Found<'a> for TimeMixPlan<'a> {
    fn tensors(&self) -> PlannedTensors<'_, 'a> {
        let Self { mixes, receptance, key, value, .. } = self;
        let mut linears = vec![receptance, key, value];
        linears.extend(self.low_ranks().flat_map(|low| [&low.down, &low.up]));
        linears.push(&self.out);
        let scales = [&self.removal_scale, &self.rate_scale, &self.bonus];
        let vectors = mixes.iter().chain(scales).chain(&self.norm);
        let biases = self.low_ranks().filter_map(|low| low.bias.as_ref());
        // A factor of the row itself for each of the row before.
        let n_made = mixes.iter().map(|mix| mix.rows.n).sum();
        let vectors = vectors.chain(biases).collect();
        PlannedTensors { linears, by_head: Vec::new(), vectors, n_made }
    }
}

impl<B: Device> Packed<B> for TimeMixWeights<B> {
    fn matrices(&self) -> Vec<&B::Weight> {
        self.linears().flat_map(Linear::weights).collect()
    }

    /// None: every projection reads a mixture of the layer's input with the row before.
    fn inputs(&self) -> Vec<&Linear<B>> {
        Vec::new()
    }
}

impl Stages for TimeMix {
    fn plan<'a>(
        &self,
        lookup: &Lookup<'a, '_>,
        layer: usize,
    ) -> Result<TimeMixPlan<'a>, ModelError> {
        let (hidden, width) = (lookup.spec.hidden_size, self.width());
        let linear =
            |name, n, k| lookup.linear(layer, &[Projection { name, rows: Rows::all(n) }], k, false);
        let vector = |name| lookup.vector(name, layer, width);
        let low = |[down, up]: [Name; 2], rank: usize, bias: Option<Name>| {
            Ok::<_, ModelError>(LowRankPlan {
                down: linear(down, rank, hidden)?,
                up: linear(up, width, rank)?,
                bias: bias.map(vector).transpose()?,
            })
        };
        let has_all = lookup.has_vector(Name::Mixes, layer);
        let mixes = match has_all {
            true => vec![lookup.vector(Name::Mixes, layer, Self::N_MIXES * hidden)?],
            false => {
                let mix = |name: &Name| lookup.vector(*name, layer, hidden);
                Name::MIXES.iter().map(mix).collect::<Result<_, _>>()?
            }
        };
        let norm_bias = lookup.conv_bias(Name::GatedNorm, layer, width)?;
        let residual = [Name::ResidualDown, Name::ResidualUp];
        Ok(TimeMixPlan {
            mixes,
            receptance: linear(Name::RecurrentQ, width, hidden)?,
            key: linear(Name::RecurrentK, width, hidden)?,
            value: linear(Name::RecurrentV, width, hidden)?,
            decay: low(
                [Name::RecurrentDecay, Name::DecayUp],
                self.decay_rank,
                Some(Name::DecayBias),
            )?,
            rate: low([Name::RateDown, Name::RateUp], self.rate_rank, Some(Name::RateBias))?,
            gate: low([Name::RecurrentGate, Name::RecurrentGateUp], self.gate_rank, None)?,
            residual: (self.residual_rank)
                .map(|rank| low(residual, rank, Some(Name::ResidualBias)))
                .transpose()?,
            removal_scale: vector(Name::RemovalScale)?,
            rate_scale: vector(Name::RateScale)?,
            bonus: vector(Name::Bonus)?,
            norm: [lookup.weight_norm(Name::GatedNorm, layer, width)?, norm_bias],
            out: linear(Name::RecurrentOut, hidden, width)?,
        })
    }

    fn pack<B: Device>(
        &self,
        plan: &TimeMixPlan<'_>,
        packer: &mut Packer<'_, B>,
    ) -> Result<TimeMixWeights<B>, ModelError> {
        let hidden = packer.spec.hidden_size;
        let mut mixes = Vec::new();
        for mix in &plan.mixes {
            mixes.extend(two_taps(&packer.read(mix)?, hidden));
        }
        let mut low = |plan: &LowRankPlan<'_>| {
            let (down, mut up) = (packer.linear(&plan.down)?, packer.linear(&plan.up)?);
            up.bias = plan.bias.as_ref().map(|bias| packer.vector(bias)).transpose()?;
            Ok::<_, ModelError>(LowRank { down, up })
        };
        let (decay, rate, gate) = (low(&plan.decay)?, low(&plan.rate)?, low(&plan.gate)?);
        let residual = plan.residual.as_ref().map(low).transpose()?;
        let [weight, bias] = &plan.norm;
        let norm = Norm {
            weight: packer.vector(weight)?,
            bias: Some(packer.vector(bias)?),
            eps: self.norm_eps,
        };
        Ok(TimeMixWeights {
            mixes: packer.put(&mixes),
            receptance: packer.linear(&plan.receptance)?,
            key: packer.linear(&plan.key)?,
            value: packer.linear(&plan.value)?,
            decay,
            rate,
            gate,
            residual,
            removal_scale: packer.vector(&plan.removal_scale)?,
            rate_scale: packer.vector(&plan.rate_scale)?,
            bonus: packer.vector(&plan.bonus)?,
            norm,
            out: packer.linear(&plan.out)?,
        })
    }

    fn list<'a>(
        &self,
        plan: TimeMixPlan<'a>,
        layer: usize,
        list: &mut Listing<'a, '_>,
    ) -> Result<(), ModelError> {
        let (n, hidden) = (Self::N_MIXES, plan.receptance.k);
        let weights = plan.mixes.into_iter().flat_map(|mix| mix.weights).collect();
        let mixes = Source::plain(weights, Rows::all(n * hidden));
        list.shaped(list.naming.weight(Name::Mixes, layer), vec![n, 1, 1, hidden], mixes);
        list.only(Name::RecurrentQ, layer, plan.receptance)?;
        list.only(Name::RecurrentK, layer, plan.key)?;
        list.only(Name::RecurrentV, layer, plan.value)?;
        // Other readers expect those of the residual in the first layer as well, and leave them alone.
        let residual = plan.residual.unwrap_or_else(|| plan.rate.again());
        for ([down, up], bias, low) in [
            ([Name::ResidualDown, Name::ResidualUp], Some(Name::ResidualBias), residual),
            ([Name::RateDown, Name::RateUp], Some(Name::RateBias), plan.rate),
            ([Name::RecurrentDecay, Name::DecayUp], Some(Name::DecayBias), plan.decay),
            ([Name::RecurrentGate, Name::RecurrentGateUp], None, plan.gate),
        ] {
            list.only(down, layer, low.down)?;
            list.only(up, layer, low.up)?;
            if let Some(name) = bias {
                list.norm(name, layer, low.bias, None);
            }
        }
        for (name, vector) in [
            (Name::RemovalScale, plan.removal_scale),
            (Name::RateScale, plan.rate_scale),
            (Name::Bonus, plan.bonus),
        ] {
            list.norm(name, layer, Some(vector), None);
        }
        let [weight, bias] = plan.norm;
        list.norm(Name::GatedNorm, layer, Some(weight), None);
        list.bias(Name::GatedNorm, layer, Some(bias));
        list.only(Name::RecurrentOut, layer, plan.out)
    }
}

/// Token shifts `x + mix ∘ (before - x)` as convolutions: of each the factors of the row before,
/// `mix`, and of the row itself, `1 - mix`. `mixes`: `[n, hidden]`, result `[n, 2, hidden]`.
pub(super) fn two_taps(mixes: &[f32], hidden: usize) -> Vec<f32> {
    let taps = |mix: &[f32]| -> Vec<f32> {
        mix.iter().copied().chain(mix.iter().map(|mix| 1.0 - mix)).collect()
    };
    mixes.chunks_exact(hidden).flat_map(taps).collect()
}
