//! Linear recurrences whose state is a matrix per head: Gated DeltaNet (Yang et al., 2024), Kimi Delta
//! Attention (Kimi Team, 2025), Mamba 2 (Dao and Gu, 2024) and lightning attention (Qin et al., 2024).
//!
//! ```text
//! x ── input ──> | q | k | v | z | beta | decay |          one product
//!                 └─ convolution over time ─┘ silu          each channel by itself
//!
//! state of a value head S [key, value], of the row at t with its decay exp(g) <= 1:
//!     delta   S = exp(g) S + k ⊗ beta (v - exp(g) Sᵀ k)    q and k of length 1
//!     channel S = D S + k ⊗ beta (v - (D S)ᵀ k)            D = diag(exp(g)), an entry per row of S
//!     sum     S = exp(g) S + k ⊗ beta v                    Mamba 2: C, B, x and dt
//!     steady  S = exp(g) S + k ⊗ v                         g is the head's own, and no input changes it
//!     o = Sᵀ q  (+ skip · v)
//! o ── norm and gate by z ── out ──> delta
//! ```
//!
//! Kimi Delta Attention makes its decays and its gate of latents: `input` gives these, and one more
//! product each what they stand for. Lightning attention has no convolution, and SiLU alone.
//!
//! That is the recurrence as its papers write it. Devices compute it in chunks of
//! [`CHUNK_TOKENS`](crate::CHUNK_TOKENS) positions, see [`state`](crate::StateShape).
//!
//! Value heads share keys and queries in groups, see [`ValueHeads`].

mod tensors;

use super::kind::Stages;
use super::{Found, Kept, Kind, Linear, MixerKind, Norm, Packed, PlannedTensors};
use crate::arch::Part as Name;
use crate::device::Device;
use crate::error::ModelError;
use crate::export::Listing;
use crate::load::{LinearPlan, Lookup, NormPlan, Packer, Projection, Rows};
use crate::parameters::Parameters;
use crate::state::StateLayer;

/// A linear recurrence with a matrix for a state.
#[derive(Clone, Debug, PartialEq)]
pub struct Recurrent {
    /// Heads of keys and queries.
    pub n_key_heads: usize,
    /// Heads of values; a multiple of `n_key_heads`.
    pub n_value_heads: usize,
    /// Which key head each value head reads.
    pub order: ValueHeads,
    /// Elements of a key.
    pub key_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// Taps of the convolution over queries, keys and values; 0 where there is none.
    pub taps: usize,
    /// How the state takes in a row.
    pub rule: Rule,
    /// Whether the convolution has a bias.
    pub conv_bias: bool,
    /// Whether the projection from the residual stream has a bias.
    pub bias: bool,
    /// Whether the projection to the residual stream has one.
    pub out_bias: bool,
    /// Whether a multiple of each value, learned per head, is added to the output.
    pub has_skip: bool,
    /// How the output is normed and gated.
    pub gate: Gate,
    /// Added to the mean square in the norm of the output.
    pub norm_eps: f32,
}

/// Which key head each value head reads, for `r` value heads of each of `n` key heads.
///
/// ```text
/// Grouped   value head h reads key head h / r      0 0 1 1 2 2 ..
/// Tiled     value head h reads key head h % n      0 1 2 .. 0 1 2 ..
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ValueHeads {
    /// The value heads of a key head are neighbours, as in Hugging Face folders.
    Grouped,
    /// First one value head of every key head, then the next of every key head: GGUF files of Qwen3.5.
    Tiled,
}

/// How the state takes in a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// The gated delta rule: `beta` is a sigmoid, `g = -exp(A) softplus(a + bias)`, and queries and keys
    /// are divided by their lengths, queries by the root of `key_dim` as well.
    Delta {
        /// Factor of `beta`: 2 where the state may turn what it forgets around.
        beta_scale: f32,
    },
    /// The same with a `g` for each element of a key, whose `a` is made of a latent, as the gate is; a
    /// key head for each value head.
    ChannelDelta {
        /// Elements of each of both latents.
        rank: usize,
    },
    /// A decaying sum: `dt = softplus(dt + bias)`, bounded, is both `beta` and the factor of the decay
    /// `g = -exp(A) dt`.
    Sum {
        /// Least and greatest `dt`.
        dt_limits: [f32; 2],
    },
    /// A decaying sum of which `g` of head `h` of `n` is `-factor · 2^(-8 (h + 1) / n)` in every row, and
    /// `beta` is 1.
    Steady {
        /// The layer's own factor.
        factor: f32,
    },
}

/// How the output is normed and gated by `z`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gate {
    /// `rms_norm(o) · silu(z)`, each value head by itself with the same weight.
    AfterNorm,
    /// `rms_norm(o) · sigmoid(z)`.
    SigmoidAfterNorm {
        /// Whether the norm is that of the whole row, and not of each value head by itself.
        is_whole: bool,
    },
    /// `rms_norm(o · silu(z))` over groups of this many that share the row evenly.
    BeforeNorm {
        /// Number of groups.
        n_groups: usize,
    },
    /// `rms_norm(o) · silu(z)`, over groups likewise.
    AfterGroupNorm {
        /// Number of groups.
        n_groups: usize,
    },
    /// `o · silu(z)`, without a norm.
    Alone,
}

impl Recurrent {
    /// The key head that a value head reads.
    pub fn key_head(&self, value_head: usize) -> usize {
        match self.order {
            ValueHeads::Grouped => value_head / (self.n_value_heads / self.n_key_heads),
            ValueHeads::Tiled => value_head % self.n_key_heads,
        }
    }

    /// Elements of a row of keys, or of queries.
    pub fn key_width(&self) -> usize {
        self.n_key_heads * self.key_dim
    }

    /// Elements of a row of values.
    pub fn value_width(&self) -> usize {
        self.n_value_heads * self.value_dim
    }

    /// Elements of queries, keys and values of a row: the channels of the convolution, where there is
    /// one.
    pub fn channels(&self) -> usize {
        2 * self.key_width() + self.value_width()
    }

    /// Elements of the parts of `[q | k | v | z | beta | decay]`, everything that is projected from the
    /// residual stream, after the values: of the gate or its latent, of `beta`, of decays or their
    /// latent.
    pub fn gate_widths(&self) -> [usize; 3] {
        let (value, heads) = (self.value_width(), self.n_value_heads);
        match self.rule {
            Rule::Delta { .. } => [value, heads, heads],
            Rule::ChannelDelta { rank } => [rank, heads, rank],
            Rule::Sum { .. } => [value, 0, heads],
            Rule::Steady { .. } => [value, 0, 0],
        }
    }

    /// Elements of everything that is projected from the residual stream.
    pub fn input_width(&self) -> usize {
        self.channels() + self.gate_widths().iter().sum::<usize>()
    }

    /// Decays of a row: one of each value head, or of each element of a key.
    pub fn decay_width(&self) -> usize {
        match self.rule {
            Rule::ChannelDelta { .. } => self.key_width(),
            _ => self.n_value_heads,
        }
    }

    /// Elements of the latents of gate and decays, where they have latents.
    fn rank(&self) -> Option<usize> {
        match self.rule {
            Rule::ChannelDelta { rank } => Some(rank),
            _ => None,
        }
    }

    /// Whether decays follow from the rows, and not from the head alone.
    fn has_learned_decays(&self) -> bool {
        !matches!(self.rule, Rule::Steady { .. })
    }

    /// Elements of the weight of the output's norm.
    pub fn norm_width(&self) -> usize {
        match self.gate {
            Gate::AfterNorm | Gate::SigmoidAfterNorm { is_whole: false } => self.value_dim,
            Gate::BeforeNorm { .. }
            | Gate::AfterGroupNorm { .. }
            | Gate::SigmoidAfterNorm { is_whole: true } => self.value_width(),
            Gate::Alone => 0,
        }
    }
}

/// Packed weights of a linear recurrence.
#[derive(Debug)]
pub struct RecurrentWeights<B: Device> {
    /// `[input_width, hidden]`.
    pub input: Linear<B>,
    /// Taps of the convolution, the earliest position first: `[taps, channels]`.
    pub conv: Option<B::Vector>,
    /// `[channels]`.
    pub conv_bias: Option<B::Vector>,
    /// Factors of decays, `-exp(A)`, or the logarithms of decays themselves where no row changes them:
    /// `[n_value_heads]`.
    pub decay: B::Vector,
    /// `[decay_width]`; absent where no row changes decays.
    pub decay_bias: Option<B::Vector>,
    /// Makes decays of their latent: `[key_width, rank]`.
    pub decay_up: Option<Linear<B>>,
    /// Makes the gate of its latent: `[value_width, rank]`.
    pub gate_up: Option<Linear<B>>,
    /// `[n_value_heads]`.
    pub skip: Option<B::Vector>,
    /// Norm of the output, `[norm_width]`, unless it is gated alone.
    pub norm: Option<Norm<B>>,
    /// `[hidden, value_width]`.
    pub out: Linear<B>,
}

/// Tensors of a linear recurrence.
pub struct RecurrentPlan<'a> {
    input: LinearPlan<'a>,
    conv: Option<NormPlan<'a>>,
    conv_bias: Option<NormPlan<'a>>,
    decay: Option<NormPlan<'a>>,
    /// Whether `decay` holds the factors themselves, and not their logarithms.
    decays_are_rates: bool,
    decay_bias: Option<NormPlan<'a>>,
    decay_up: Option<LinearPlan<'a>>,
    gate_up: Option<LinearPlan<'a>>,
    /// Decays that are in no file.
    n_made: usize,
    skip: Option<NormPlan<'a>>,
    norm: Option<NormPlan<'a>>,
    out: LinearPlan<'a>,
}

impl Kind for Recurrent {
    type Plan<'a> = RecurrentPlan<'a>;
    type Weights<B: Device> = RecurrentWeights<B>;

    fn n_weights(&self, hidden_size: usize) -> usize {
        let of_latents =
            self.rank().map_or(0, |rank| rank * (self.key_width() + self.value_width()));
        hidden_size * (self.input_width() + self.value_width()) + of_latents
    }

    fn parameters(&self, hidden_size: usize, _head_rows: usize) -> Parameters {
        let (input, value, heads) = (self.input_width(), self.value_width(), self.n_value_heads);
        let of_latents = self
            .rank()
            .map(|rank| Parameters::products(&[[self.key_width(), rank], [value, rank]]));
        Parameters::products(&[[input, hidden_size], [hidden_size, value]])
            .and(of_latents.unwrap_or_default())
            .vector(true, self.taps * self.channels())
            .vector(self.conv_bias, self.channels())
            .vector(true, heads)
            .vector(self.has_learned_decays(), self.decay_width())
            .vector(self.has_skip, heads)
            .vector(true, self.norm_width())
            .vector(self.bias, input)
            .vector(self.out_bias, hidden_size)
    }
}

impl MixerKind for Recurrent {
    fn n_heads(&self) -> usize {
        self.n_value_heads
    }

    fn kept(&self) -> Kept {
        let Self { n_key_heads, n_value_heads, key_dim, value_dim, .. } = *self;
        let (taps, channels) = match self.taps {
            0 => (1, 0),
            taps => (taps, self.channels()),
        };
        let has_channel_decays = matches!(self.rule, Rule::ChannelDelta { .. });
        let is_selective = false;
        Kept::state(StateLayer {
            n_key_heads,
            n_value_heads,
            key_dim,
            value_dim,
            is_selective,
            has_removal_keys: false,
            has_channel_decays,
            channels,
            taps,
        })
    }

    fn window(&self) -> Option<usize> {
        None
    }

    fn is_causal(&self) -> bool {
        true
    }

    fn query_width(&self) -> usize {
        self.input_width()
    }

    fn out_width(&self) -> usize {
        self.value_width()
    }

    fn out<B: Device>(weights: &RecurrentWeights<B>) -> Option<&Linear<B>> {
        Some(&weights.out)
    }
}

impl<'a> Found<'a> for RecurrentPlan<'a> {
    fn tensors(&self) -> PlannedTensors<'_, 'a> {
        let Self { input, conv, conv_bias, decay, decay_bias, skip, norm, out, .. } = self;
        let optional = [conv, conv_bias, decay, decay_bias, skip, norm];
        PlannedTensors {
            linears: [input]
                .into_iter()
                .chain(&self.decay_up)
                .chain(&self.gate_up)
                .chain([out])
                .collect(),
            by_head: Vec::new(),
            vectors: optional.into_iter().flatten().collect(),
            n_made: self.n_made,
        }
    }
}

impl<B: Device> Packed<B> for RecurrentWeights<B> {
    fn matrices(&self) -> Vec<&B::Weight> {
        let all = [&self.input, &self.out].into_iter().chain(&self.decay_up).chain(&self.gate_up);
        all.flat_map(Linear::weights).collect()
    }

    fn inputs(&self) -> Vec<&Linear<B>> {
        vec![&self.input]
    }
}

impl Stages for Recurrent {
    fn plan<'a>(
        &self,
        lookup: &Lookup<'a, '_>,
        layer: usize,
    ) -> Result<RecurrentPlan<'a>, ModelError> {
        let (hidden, heads) = (lookup.spec.hidden_size, self.n_value_heads);
        let out = Projection { name: Name::RecurrentOut, rows: Rows::all(hidden) };
        let vector = |name, n| lookup.vector(name, layer, n);
        let learned = |name, n| self.has_learned_decays().then(|| vector(name, n)).transpose();
        let up = |name, n| {
            let up = [Projection { name, rows: Rows::all(n) }];
            self.rank().map(|rank| lookup.linear(layer, &up, rank, false)).transpose()
        };
        Ok(RecurrentPlan {
            input: lookup.linear(layer, &self.projections(lookup, layer), hidden, self.bias)?,
            conv: (self.taps > 0).then(|| self.plan_taps(lookup, layer)).transpose()?,
            conv_bias: (self.conv_bias)
                .then(|| lookup.conv_bias(Name::Conv, layer, self.channels()))
                .transpose()?,
            decay: learned(Name::Decay, heads)?,
            decays_are_rates: lookup.stored.decays_are_rates,
            decay_bias: learned(Name::DecayBias, self.decay_width())?,
            decay_up: up(Name::DecayUp, self.key_width())?,
            gate_up: up(Name::RecurrentGateUp, self.value_width())?,
            n_made: if self.has_learned_decays() { 0 } else { heads },
            skip: self.has_skip.then(|| vector(Name::Skip, heads)).transpose()?,
            norm: (self.gate != Gate::Alone)
                .then(|| vector(Name::GatedNorm, self.norm_width()))
                .transpose()?,
            out: lookup.linear(layer, &[out], self.value_width(), self.out_bias)?,
        })
    }

    fn pack<B: Device>(
        &self,
        plan: &RecurrentPlan<'_>,
        packer: &mut Packer<'_, B>,
    ) -> Result<RecurrentWeights<B>, ModelError> {
        let taps = plan.conv.as_ref().map(|conv| packer.read(conv)).transpose()?;
        let taps = taps.map(|taps| self.in_order(&taps, self.taps));
        let bias = plan.conv_bias.as_ref().map(|bias| packer.read(bias)).transpose()?;
        let bias = bias.map(|bias| self.in_order(&bias, 1));
        let decay = match &plan.decay {
            Some(decay) => packer.decay_rates(decay, plan.decays_are_rates)?,
            None => self.made_decays(),
        };
        let norm = plan.norm.as_ref().map(|norm| packer.vector(norm)).transpose()?;
        Ok(RecurrentWeights {
            conv: taps.map(|taps| packer.put(&taps)),
            conv_bias: bias.map(|bias| packer.put(&bias)),
            decay: packer.put(&decay),
            decay_bias: plan.decay_bias.as_ref().map(|bias| packer.vector(bias)).transpose()?,
            decay_up: plan.decay_up.as_ref().map(|up| packer.linear(up)).transpose()?,
            gate_up: plan.gate_up.as_ref().map(|up| packer.linear(up)).transpose()?,
            skip: plan.skip.as_ref().map(|skip| packer.vector(skip)).transpose()?,
            norm: norm.map(|weight| Norm { weight, bias: None, eps: self.norm_eps }),
            input: packer.linear(&plan.input)?,
            out: packer.linear(&plan.out)?,
        })
    }

    fn list<'a>(
        &self,
        plan: RecurrentPlan<'a>,
        layer: usize,
        list: &mut Listing<'a, '_>,
    ) -> Result<(), ModelError> {
        self.list_tensors(plan, layer, list)
    }
}

impl Recurrent {
    /// Logarithms of the decays of heads that no row changes.
    fn made_decays(&self) -> Vec<f32> {
        let Rule::Steady { factor } = self.rule else { return Vec::new() };
        let n = self.n_value_heads as f64;
        let slope = |head: usize| (-8.0 * (head + 1) as f64 / n).exp2() as f32;
        (0..self.n_value_heads).map(|head| -slope(head) * factor).collect()
    }

    /// The taps of all channels, `[channels, taps]` in a file, as `[taps, channels]` with the channels in
    /// the order of the projection.
    fn in_order(&self, stored: &[f32], taps: usize) -> Vec<f32> {
        let (key, value) = (self.key_width(), self.value_width());
        let channels: Vec<usize> = match self.rule {
            Rule::Delta { .. } | Rule::ChannelDelta { .. } | Rule::Steady { .. } => {
                (0..self.channels()).collect()
            }
            // A file has values, keys, queries.
            Rule::Sum { .. } => {
                (value + key..value + 2 * key).chain(value..value + key).chain(0..value).collect()
            }
        };
        let of_tap = |tap| channels.iter().map(move |channel| stored[channel * taps + tap]);
        (0..taps).flat_map(of_tap).collect()
    }
}
