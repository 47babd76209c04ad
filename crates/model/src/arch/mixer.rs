//! Sequence mixers: kinds of attention, as data.

use super::Mla;

/// Sequence mixers. A new family of attention is a new variant.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Mixer {
    /// Grouped-query attention (Ainslie et al., 2023).
    Gqa(Gqa),
    /// Latent attention (DeepSeek-AI, 2024).
    Mla(Mla),
}

/// What of a token is kept for later ones, in each layer.
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

/// Grouped-query attention.
#[derive(Clone, Debug, PartialEq)]
pub struct Gqa {
    /// Query heads; a multiple of `n_kv_heads`.
    pub n_heads: usize,
    /// Key/value heads.
    pub n_kv_heads: usize,
    /// Elements per head; even.
    pub head_dim: usize,
    /// Whether the q, k and v projections carry a bias.
    pub qkv_bias: bool,
    /// Whether the output projection carries a bias.
    pub out_bias: bool,
    /// Norm of q and k before RoPE.
    pub qk_norm: Option<QkNorm>,
    /// Bound on the absolute value of q, k and v as they are projected.
    pub clip: Option<f32>,
    /// Which of the spec's rotary embeddings rotates q and k, or `None` where none does.
    pub rope: Option<usize>,
    /// Factor of the slope of each head by which scores fall with distance (ALiBi), or `None` where
    /// they do not.
    pub alibi: Option<f32>,
    /// Factor of the scores.
    pub scale: f32,
    /// `tanh` soft cap on the scores, or `None`.
    pub softcap: Option<f32>,
    /// Attention window in tokens, the token itself included, or `None` for full attention.
    pub window: Option<usize>,
    /// Whether a token sees only itself and what is before it; if not, a window is as wide after it
    /// as before.
    pub is_causal: bool,
    /// Positions of a segment, beyond which attention does not see, or `None` for one segment.
    pub segment: Option<usize>,
    /// Whether each head has a learned logit without a value in its softmax.
    pub has_sinks: bool,
    /// Growth of queries with their position.
    pub temperature: Option<Temperature>,
}

/// Queries at position `p` are multiplied by `1 + factor · ln(1 + floor((p + 1) / step))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Temperature {
    /// Factor of the logarithm.
    pub factor: f32,
    /// Positions over which queries are alike.
    pub step: usize,
}

impl Temperature {
    /// The factor of a query.
    pub fn at(&self, position: usize) -> f32 {
        1.0 + self.factor * (((position + 1) / self.step) as f32).ln_1p()
    }
}

/// Norms of q and k.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum QkNorm {
    /// RMS of each head, one weight for all: Qwen3, Gemma 3.
    HeadRms,
    /// RMS of each head without a weight: Llama 4.
    HeadRmsBare,
    /// RMS over all heads together: OLMo 2.
    WholeRms,
    /// Layer norm without bias of each head, which has a weight of its own: Cohere, StableLM.
    HeadLayer,
}

impl Mixer {
    /// Query heads.
    pub fn n_heads(&self) -> usize {
        match self {
            Self::Gqa(gqa) => gqa.n_heads,
            Self::Mla(mla) => mla.n_heads,
        }
    }

    /// What of a token is kept for later ones.
    pub fn kv_heads(&self) -> KvHeads {
        match self {
            Self::Gqa(gqa) => KvHeads {
                n: gqa.n_kv_heads,
                key_dim: gqa.head_dim,
                value_dim: gqa.head_dim,
                values_in_keys: false,
            },
            Self::Mla(mla) => KvHeads {
                n: 1,
                key_dim: mla.key_dim(),
                value_dim: mla.kv_rank,
                values_in_keys: true,
            },
        }
    }

    /// Attention window in tokens, or `None` for full causal attention.
    pub fn window(&self) -> Option<usize> {
        match self {
            Self::Gqa(gqa) => gqa.window,
            Self::Mla(_) => None,
        }
    }

    /// Whether a token sees only itself and the tokens before it.
    pub fn is_causal(&self) -> bool {
        match self {
            Self::Gqa(gqa) => gqa.is_causal,
            Self::Mla(_) => true,
        }
    }

    /// Elements of a row of queries as attention takes it, with keys and values of the row where
    /// these are beside them.
    pub fn query_width(&self) -> usize {
        match self {
            Self::Gqa(gqa) => gqa.qkv_width(),
            Self::Mla(mla) => mla.absorbed_width(),
        }
    }

    /// Elements of a row that the output projection reads.
    pub fn out_width(&self) -> usize {
        match self {
            Self::Gqa(gqa) => gqa.q_width(),
            Self::Mla(mla) => mla.out_width(),
        }
    }

    /// Elements of all matrices, in a model of this width.
    pub fn n_weights(&self, hidden_size: usize) -> usize {
        match self {
            Self::Gqa(gqa) => hidden_size * (gqa.qkv_width() + gqa.q_width()),
            Self::Mla(mla) => mla.n_weights(hidden_size),
        }
    }
}

impl Gqa {
    /// Width of all query heads together, in elements.
    pub fn q_width(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Width of all key heads together, in elements.
    pub fn kv_width(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    /// Width of q, k and v stacked, in elements.
    pub fn qkv_width(&self) -> usize {
        self.q_width() + 2 * self.kv_width()
    }
}
