//! The layers of a model in the three phases of their life, and the registry of their kinds.
//!
//! ```text
//! phase      Mixer::Gqa holds                  made by
//! Spec       Gqa                               an architecture, from a config
//! Planned    Gqa, and the tensors found        Mixer::plan
//! Loaded     Gqa, and the packed weights       Mixer::pack
//! ```
//!
//! A kind of mixer is one file here: its shape, the tensors that it asks for, how they are packed
//! and how they are named when they are written. The spec travels with what is made for it, so
//! that no code has to match two enums against each other.
//!
//! To add a kind, create its file and add its line to `kinds!` below; a device implements its
//! operations.

mod absent;
mod channel_mix;
mod cross;
mod gqa;
mod kind;
mod linear;
mod mla;
mod mlp;
mod moe;
mod parallel;
mod recurrent;
mod selective;
mod short_conv;
mod time_mix;
mod with_experts;

use std::marker::PhantomData;

use crate::device::Device;
use crate::error::ModelError;
use crate::export::Listing;
use crate::load::{Lookup, Packer};
use crate::parameters::Parameters;
use pelton_base::Reach;

pub use absent::{Absent, NoTensors, NoWeights};
pub use channel_mix::{ChannelMix, ChannelMixWeights};
pub use cross::{CrossAttention, CrossAttentionWeights};
pub use gqa::{Gqa, GqaWeights, QkNorm, RelativeBias, Temperature};
use kind::Stages;
pub(crate) use kind::{Found, PlannedTensors};
pub use kind::{Kept, Kind, KvHeads, MixerKind, MlpKind, Packed};
pub use linear::{Linear, Norm, Piece, Shard};
pub(crate) use mla::MlaPlan;
pub use mla::{Mla, MlaWeights};
pub(crate) use mlp::TwoPlan;
pub use mlp::{Act, GatedMlp, PlainMlp, TwoLayers};
pub(crate) use moe::MoePlan;
pub use moe::{
    ExpertGroups, GroupRank, Moe, MoeWeights, Router, RouterScore, SharedExpert, SharedWeights,
};
pub use parallel::{Parallel, ParallelWeights};
pub use recurrent::{Gate, Recurrent, RecurrentWeights, Rule, ValueHeads};
pub use selective::{SelectionNorms, SelectiveScan, SelectiveWeights};
pub use short_conv::{ShortConv, ShortConvWeights};
pub use time_mix::{LowRank, TimeMix, TimeMixWeights};
pub use with_experts::{WithExperts, WithExpertsWeights};

/// A phase of the life of a layer.
pub trait Phase {
    /// A kind of mixer in this phase.
    type Of<K: Kind>;
}

/// Described by a config: a kind's spec.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spec;

/// Found in a model's files: a spec and its tensors.
#[derive(Debug)]
pub struct Planned<'a>(PhantomData<&'a ()>);

/// Packed for a device: a spec and its weights.
#[derive(Debug)]
pub struct Loaded<B>(PhantomData<B>);

impl Phase for Spec {
    type Of<K: Kind> = K;
}

impl<'a> Phase for Planned<'a> {
    type Of<K: Kind> = Module<K, K::Plan<'a>>;
}

impl<B: Device> Phase for Loaded<B> {
    type Of<K: Kind> = Module<K, K::Weights<B>>;
}

/// A spec and the weights that were found or packed for it.
#[derive(Debug)]
pub struct Module<K, W> {
    /// The shape.
    pub spec: K,
    /// The weights.
    pub weights: W,
}

/// Makes an enum with a variant for each kind, a macro that evaluates an expression for the kind
/// at hand, and the steps from phase to phase.
macro_rules! kinds {
    (
        $d:tt $each:ident
        $(#[$enum_doc:meta])* $enum:ident { $($(#[$doc:meta])* $variant:ident($kind:ident),)+ }
    ) => {
        $(#[$enum_doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub enum $enum<P: Phase = Spec> {
            $($(#[$doc])* $variant(P::Of<$kind>),)+
        }

        /// The value of an expression for whatever kind it is.
        macro_rules! $each {
            ($d value:expr, $d kind:pat => $d body:expr) => {
                match $d value { $($enum::$variant($d kind) => $d body,)+ }
            };
        }

        impl $enum {
            /// Looks up the tensors of layer `layer`.
            pub(crate) fn plan<'a>(
                &self,
                lookup: &Lookup<'a, '_>,
                layer: usize,
            ) -> Result<$enum<Planned<'a>>, ModelError> {
                Ok(match self {
                    $(Self::$variant(spec) => {
                        let weights = spec.plan(lookup, layer)?;
                        $enum::$variant(Module { spec: spec.clone(), weights })
                    })+
                })
            }

            /// Elements of all matrices, in a model of this width.
            pub fn n_weights(&self, hidden_size: usize) -> usize {
                $each!(self, spec => spec.n_weights(hidden_size))
            }

            /// Its parameters as they are packed, in a model of this width.
            pub(crate) fn parameters(&self, hidden_size: usize, head_rows: usize) -> Parameters {
                $each!(self, spec => spec.parameters(hidden_size, head_rows))
            }
        }

        impl<'a> $enum<Planned<'a>> {
            /// Packs the tensors for a device.
            pub(crate) fn pack<B: Device>(
                &self,
                packer: &mut Packer<'_, B>,
            ) -> Result<$enum<Loaded<B>>, ModelError> {
                Ok(match self {
                    $(Self::$variant(Module { spec, weights }) => {
                        let weights = spec.pack(weights, packer)?;
                        $enum::$variant(Module { spec: spec.clone(), weights })
                    })+
                })
            }

            /// Everything that packing reads.
            pub(crate) fn tensors<'p>(&'p self) -> PlannedTensors<'p, 'a> {
                $each!(self, module => module.weights.tensors())
            }

            /// Lists the tensors of layer `layer` under the names of a GGUF file.
            pub(crate) fn list(
                self,
                layer: usize,
                list: &mut Listing<'a, '_>,
            ) -> Result<(), ModelError> {
                $each!(self, module => module.spec.list(module.weights, layer, list))
            }
        }

        impl<B: Device> $enum<Loaded<B>> {
            /// Every matrix.
            pub(crate) fn matrices(&self) -> Vec<&B::Weight> {
                $each!(self, module => module.weights.matrices())
            }

            /// The projections that read the layer's input.
            pub(crate) fn inputs(&self) -> Vec<&Linear<B>> {
                $each!(self, module => module.weights.inputs())
            }
        }
    };
}

kinds! {
    $ each_mixer
    /// Sequence mixers: what carries information from one position to another.
    Mixer {
        /// Grouped-query attention (Ainslie et al., 2023).
        Gqa(Gqa),
        /// Attention to the rows of an encoder (Vaswani et al., 2017).
        CrossAttention(CrossAttention),
        /// Latent attention (DeepSeek-AI, 2024).
        Mla(Mla),
        /// A linear recurrence with a matrix for a state (Yang et al., 2024; Dao and Gu, 2024).
        Recurrent(Recurrent),
        /// A linear recurrence and attention side by side (TII, 2025).
        Parallel(Parallel),
        /// A recurrence in which each element of a state has a rate of its own (Gu and Dao, 2023).
        SelectiveScan(SelectiveScan),
        /// A short convolution between two gates (Liquid AI, 2025).
        ShortConv(ShortConv),
        /// A recurrence whose removal keys are not those that are written (Peng et al., 2025).
        TimeMix(TimeMix),
        /// A perceptron whose input is mixed with the row before (Peng et al., 2025).
        ChannelMix(ChannelMix),
        /// None: the layer has a channel mixer alone.
        Absent(Absent),
    }
}

kinds! {
    $ each_mlp
    /// Channel mixers: what changes each position by itself.
    Mlp {
        /// `down(act(gate(x)) * up(x))`.
        Gated(GatedMlp),
        /// `down(act(up(x)))`.
        Plain(PlainMlp),
        /// Several perceptrons, of which each row goes through some.
        Moe(Moe),
        /// A perceptron and experts side by side, which read the residual stream (Google, 2026).
        WithExperts(WithExperts),
        /// None: the layer has a sequence mixer alone.
        Absent(Absent),
    }
}

/// A sequence mixer with its packed weights.
pub type MixerWeights<B> = Mixer<Loaded<B>>;

/// A channel mixer with its packed weights.
pub type MlpWeights<B> = Mlp<Loaded<B>>;

impl Mixer {
    /// Whether it mixes rows with the rows before them, and so reads its input as floats.
    pub(crate) fn shifts_tokens(&self) -> bool {
        matches!(self, Self::TimeMix(_) | Self::ChannelMix(_))
    }

    /// Whether it mixes in the values of the first layer.
    pub(crate) fn reads_first_values(&self) -> bool {
        matches!(self, Self::TimeMix(mix) if mix.residual_rank.is_some())
    }

    /// Query heads.
    pub fn n_heads(&self) -> usize {
        each_mixer!(self, mixer => mixer.n_heads())
    }

    /// The memory that is kept of a sequence for later tokens.
    pub fn kept(&self) -> Kept {
        each_mixer!(self, mixer => mixer.kept())
    }

    /// The keys and values of a token that are kept in pages, where there are any.
    pub fn kv_heads(&self) -> Option<KvHeads> {
        self.kept().pages
    }

    /// The layer in whose place this one's keys and values lie, where it has none of its own: it reads
    /// that layer's, or has its own there for the tokens of a source.
    pub fn source(&self) -> Option<usize> {
        match self {
            Self::Gqa(gqa) => gqa.kv_of,
            Self::CrossAttention(cross) => Some(cross.kv_of),
            _ => None,
        }
    }

    /// The keys and values of a token that attention reads, whichever layer stores them.
    pub fn read_heads(&self) -> Option<KvHeads> {
        match self {
            Self::Gqa(gqa) => Some(gqa.kv_heads()),
            Self::CrossAttention(cross) => Some(cross.kv_heads()),
            _ => self.kv_heads(),
        }
    }

    /// The tokens that a layer with a window reads, or `None` for one that reads all.
    pub fn reach(&self) -> Option<Reach> {
        let Self::Gqa(gqa) = self else { return None };
        // A layer with both, which no family has, reads no more than its segment.
        let segment = gqa.segment.map(Reach::Segment);
        segment.or_else(|| Some(Reach::Last(gqa.window?.max(1))))
    }

    /// Attention window in tokens, or `None` for full attention.
    pub fn window(&self) -> Option<usize> {
        each_mixer!(self, mixer => mixer.window())
    }

    /// Most positions whose keys and values a row reads, or `None` for all before it.
    pub fn most_seen(&self) -> Option<usize> {
        if self.read_heads().is_some() { self.window() } else { Some(0) }
    }

    /// Whether a token sees only itself and the tokens before it.
    pub fn is_causal(&self) -> bool {
        each_mixer!(self, mixer => mixer.is_causal())
    }

    /// Elements of a row of queries as attention reads it, with the row's keys and values where
    /// they lie beside them.
    pub fn query_width(&self) -> usize {
        each_mixer!(self, mixer => mixer.query_width())
    }

    /// Elements of a row that the output projection reads.
    pub fn out_width(&self) -> usize {
        each_mixer!(self, mixer => mixer.out_width())
    }

    /// [`query_width`](Self::query_width) of each mixer of a layer with one or two; else 0.
    pub(crate) fn query_widths(&self) -> [usize; 2] {
        match self {
            Self::Parallel(both) => [both.recurrent.query_width(), both.attention.query_width()],
            one => [one.query_width(), 0],
        }
    }

    /// [`out_width`](Self::out_width) of each mixer of a layer with one or two; else 0.
    pub(crate) fn out_widths(&self) -> [usize; 2] {
        match self {
            Self::Parallel(both) => [both.recurrent.out_width(), both.attention.out_width()],
            one => [one.out_width(), 0],
        }
    }
}

impl<B: Device> Mixer<Loaded<B>> {
    /// The projections of each mixer that add to the residual stream.
    pub(crate) fn outs(&self) -> [Option<&Linear<B>>; 2] {
        let second = match self {
            Self::Parallel(both) => Some(&both.weights.attention.out),
            _ => None,
        };
        [each_mixer!(self, mixer => out_of::<_, B>(mixer)), second]
    }
}

impl<B: Device> Mixer<Loaded<B>> {
    /// The matrices that rows of an encoder alone go through.
    pub(crate) fn of_source(&self) -> impl Iterator<Item = &B::Weight> {
        let kv = match self {
            Self::CrossAttention(cross) => Some(&cross.weights.kv),
            _ => None,
        };
        kv.into_iter().flat_map(Linear::weights)
    }
}

fn out_of<K: MixerKind, B: Device>(mixer: &Module<K, K::Weights<B>>) -> Option<&Linear<B>> {
    K::out(&mixer.weights)
}

impl Mlp {
    /// Width of the hidden layer, or of an expert's, in elements.
    pub fn intermediate_size(&self) -> usize {
        each_mlp!(self, mlp => mlp.intermediate_size())
    }

    /// Whether it reads the residual stream, and not a norm of it.
    pub(crate) fn reads_stream(&self) -> bool {
        matches!(self, Self::WithExperts(_))
    }

    /// The experts, where there are any.
    pub fn experts(&self) -> Option<&Moe> {
        match self {
            Self::Moe(moe) => Some(moe),
            Self::WithExperts(both) => Some(&both.experts),
            Self::Gated(_) | Self::Plain(_) | Self::Absent(_) => None,
        }
    }

    /// Elements of the hidden layers that one row goes through, those of all its experts together.
    pub fn hidden_width(&self) -> usize {
        let of_experts = |moe: &Moe| {
            let shared = moe.shared.as_ref().map_or(0, |shared| shared.mlp.intermediate_size);
            moe.expert.intermediate_size * moe.router.top_k + shared
        };
        match self {
            Self::Moe(moe) => of_experts(moe),
            Self::WithExperts(both) => both.mlp.intermediate_size + of_experts(&both.experts),
            one => one.intermediate_size(),
        }
    }

    /// Elements of the matrices that one row goes through, in a model of this width.
    pub fn n_active_weights(&self, hidden_size: usize) -> usize {
        each_mlp!(self, mlp => mlp.n_active_weights(hidden_size))
    }
}

impl<B: Device> Mlp<Loaded<B>> {
    /// Bytes of the matrices that one row goes through.
    pub(crate) fn active_bytes(&self) -> usize {
        each_mlp!(self, mlp => mlp.spec.active_bytes(&mlp.weights))
    }
}
