//! Packed weights of sequence mixers.

use super::{Linear, Norm};
use crate::backend::Backend;

/// Weights of one attention, shapes in its [`Gqa`](crate::arch::Gqa).
#[derive(Debug)]
pub struct AttentionWeights<B: Backend> {
    /// q, k and v stacked: `[q_width + 2 kv_width, hidden]`.
    pub qkv: Linear<B>,
    /// Norm of q, as the [`Gqa`](crate::arch::Gqa) says: the weight of a head, or of all heads.
    pub q_norm: Option<Norm<B>>,
    /// Norm of k, likewise.
    pub k_norm: Option<Norm<B>>,
    /// Slope of each head's scores over distance, `[n_heads]`.
    pub slopes: Option<B::Vector>,
    /// Logit of each head that has no value, `[n_heads]`.
    pub sinks: Option<B::Vector>,
    /// `[hidden, q_width]`.
    pub out: Linear<B>,
}

/// Weights of one latent attention, shapes in its [`Mla`](crate::arch::Mla).
#[derive(Debug)]
pub struct LatentWeights<B: Backend> {
    /// What queries are made of, or they themselves, the latent and the rotated key stacked:
    /// `[down_width, hidden]`.
    pub down: Linear<B>,
    /// Norm of what queries are made of, `[q_rank]`; absent where they are projected at once.
    pub q_norm: Option<Norm<B>>,
    /// `[q_width, q_rank]`, likewise.
    pub q_up: Option<Linear<B>>,
    /// Norm of latents, `[kv_rank]`.
    pub kv_norm: Norm<B>,
    /// What takes the unrotated queries of a head to latents: `[n_heads * kv_rank, nope_dim]`.
    pub k_up: B::Weight,
    /// What takes the latents of a head to its values: `[n_heads * value_dim, kv_rank]`.
    pub v_up: B::Weight,
    /// `[hidden, out_width]`.
    pub out: Linear<B>,
}

/// Weights of one sequence mixer.
#[derive(Debug)]
pub enum MixerWeights<B: Backend> {
    /// Of grouped-query attention.
    Gqa(AttentionWeights<B>),
    /// Of latent attention.
    Mla(LatentWeights<B>),
}

impl<B: Backend> MixerWeights<B> {
    /// What reads the layer's input.
    pub(crate) fn input(&self) -> &Linear<B> {
        match self {
            Self::Gqa(weights) => &weights.qkv,
            Self::Mla(weights) => &weights.down,
        }
    }

    /// What adds to the residual stream.
    pub(crate) fn out(&self) -> &Linear<B> {
        match self {
            Self::Gqa(weights) => &weights.out,
            Self::Mla(weights) => &weights.out,
        }
    }

    /// Every matrix.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &B::Weight> {
        let (q_up, by_head) = match self {
            Self::Gqa(_) => (None, None),
            Self::Mla(weights) => (weights.q_up.as_ref(), Some([&weights.k_up, &weights.v_up])),
        };
        let linears = [self.input(), self.out()].into_iter().chain(q_up);
        linears.flat_map(Linear::weights).chain(by_head.into_iter().flatten())
    }
}
