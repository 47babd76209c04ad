//! Multi-head latent attention (DeepSeek-AI, 2024), in absorbed form.
//!
//! ```text
//! x ── down ──> | q latent or q itself | latent c | k rope |
//!                    | norm, up             | norm    | rotated
//! q of a head        | q nope | q rope |    | c ; k rope |        one key for all heads; its
//!                        |                    cached as it is      beginning c is the value
//!                    W_UK[h]ᵀ q nope ; q rope                      as long as the key
//!
//! as trained    k[h] = (W_UK[h] c ; k rope)     v[h] = W_UV[h] c
//! absorbed      q[h] · k[h] = (W_UK[h]ᵀ q nope) · c + q rope · k rope
//!               Σ p v[h]    = W_UV[h] (Σ p c)
//! ```
//!
//! A token costs `kv_rank + rope_dim` elements per layer, 576 in DeepSeek's models, where keys and
//! values of 128 heads would be 40,960. The price of the absorbed form is arithmetic: a score takes
//! 576 products instead of 192, a weighted value 512 instead of 128.
//!
//! Considered and not taken (reasoned, not measured): the trained form for long prompts (less
//! arithmetic there, but other bits than decoding, which law 6 forbids).

use pelton_base::limits;

use crate::config::HfConfig;
use crate::fields::ConfigError;
use crate::rope::RopeScaling;

/// Added to the mean square of latents, whatever other norms add.
const LATENT_NORM_EPS: f32 = 1e-6;

/// Outputs of one head are whole panels of weights.
const PANEL: usize = pelton_kernels::PANEL;

/// Multi-head latent attention.
#[derive(Clone, Debug, PartialEq)]
pub struct Mla {
    /// Query heads.
    pub n_heads: usize,
    /// Elements of the latent that queries are made of, or `None` where they are projected at once.
    pub q_rank: Option<usize>,
    /// Elements of the latent that keys and values are made of; a multiple of 16.
    pub kv_rank: usize,
    /// Elements of a head's key that come from the latent.
    pub nope_dim: usize,
    /// Elements of a key that are rotated, the same for all heads; even.
    pub rope_dim: usize,
    /// Elements of a head's value; a multiple of 16.
    pub value_dim: usize,
    /// Whether the projections from and to the residual stream carry a bias.
    pub bias: bool,
    /// Which of the spec's rotary embeddings rotates.
    pub rope: usize,
    /// Whether elements that are rotated together are neighbours, instead of half of `rope_dim` apart.
    pub is_rope_in_pairs: bool,
    /// Factor of the scores.
    pub scale: f32,
    /// Added to the mean square in the norms of the latents.
    pub norm_eps: f32,
}

impl Mla {
    /// Elements of the queries of all heads before their keys' projections are absorbed.
    pub fn q_width(&self) -> usize {
        self.n_heads * (self.nope_dim + self.rope_dim)
    }

    /// Elements of what queries are made of, or of themselves.
    pub fn q_down_width(&self) -> usize {
        self.q_rank.unwrap_or(self.q_width())
    }

    /// Elements of a token's key.
    pub fn key_dim(&self) -> usize {
        self.kv_rank + self.rope_dim
    }

    /// Elements of everything that is projected from the residual stream.
    pub fn down_width(&self) -> usize {
        self.q_down_width() + self.key_dim()
    }

    /// Elements of the queries of all heads as keys see them.
    pub fn absorbed_width(&self) -> usize {
        self.n_heads * self.key_dim()
    }

    /// Elements of the values of all heads.
    pub fn out_width(&self) -> usize {
        self.n_heads * self.value_dim
    }

    /// Elements of all matrices, in a model of this width.
    pub fn n_weights(&self, hidden_size: usize) -> usize {
        let q_up = self.q_rank.map_or(0, |rank| rank * self.q_width());
        let kv_up = self.n_heads * self.kv_rank * (self.nope_dim + self.value_dim);
        hidden_size * (self.down_width() + self.out_width()) + q_up + kv_up
    }

    /// Latent attention as a config describes it, over the first rotary embedding.
    pub(super) fn read(cfg: &HfConfig, is_rope_in_pairs: bool) -> Result<Self, ConfigError> {
        let width = |name: &str| cfg.field(name).count(limits::MODEL_WIDTH);
        let in_panels = |name: &str| {
            let n = width(name)?;
            match n.is_multiple_of(PANEL) {
                true => Ok(n),
                false => Err(cfg.field(name).error(format!("a multiple of {PANEL}"))),
            }
        };
        let rope_field = cfg.field("qk_rope_head_dim");
        let rope_dim = rope_field.count(limits::MODEL_WIDTH)?;
        if !rope_dim.is_multiple_of(2) {
            return Err(rope_field.error("an even width"));
        }
        if cfg.rope.rotary_dim != rope_dim {
            let field = cfg.field("head_dim");
            return Err(field.error(format!("{rope_dim}, the width of what is rotated")));
        }
        let q_rank = cfg.field("q_lora_rank");
        let bias = cfg.attention_bias.unwrap_or(false);
        if bias && q_rank.non_null().is_none() {
            let field = cfg.field("attention_bias");
            return Err(field.error("false where `q_lora_rank` is null"));
        }
        let nope_dim = width("qk_nope_head_dim")?;
        let value_field = cfg.field("v_head_dim");
        let value_dim = match value_field.non_null() {
            Some(_) => in_panels("v_head_dim")?,
            // As configs of MiniCPM3 leave it out.
            None => cfg.hidden_size / cfg.num_attention_heads,
        };
        if !value_dim.is_multiple_of(PANEL) || value_dim == 0 {
            return Err(value_field.error(format!("a multiple of {PANEL}")));
        }
        let mla = Self {
            n_heads: cfg.num_attention_heads,
            q_rank: q_rank.non_null().map(|field| field.count(limits::MODEL_WIDTH)).transpose()?,
            kv_rank: in_panels("kv_lora_rank")?,
            nope_dim,
            rope_dim,
            value_dim,
            bias,
            rope: 0,
            is_rope_in_pairs,
            scale: ((nope_dim + rope_dim) as f32).sqrt().recip() * yarn_scale(&cfg.rope.scaling),
            norm_eps: LATENT_NORM_EPS,
        };
        for (name, dim) in [
            ("kv_lora_rank", mla.kv_rank + rope_dim),
            ("qk_nope_head_dim", nope_dim + rope_dim),
            ("v_head_dim", mla.value_dim),
        ] {
            // Together with its weights' other side this stays far within an address.
            if mla.n_heads * dim > limits::MODEL_WIDTH {
                let most = limits::MODEL_WIDTH / mla.n_heads;
                let expected = format!("at most {most} elements per head, this makes {dim}");
                return Err(cfg.field(name).error(expected));
            }
        }
        Ok(mla)
    }
}

/// What YaRN multiplies scores by in models that say `mscale_all_dim`: its square is taken of the
/// factor that would else be on queries and keys alike.
fn yarn_scale(scaling: &RopeScaling) -> f32 {
    match scaling {
        RopeScaling::Yarn(yarn) => match yarn.mscale_all_dim {
            Some(weight) if weight != 0.0 => yarn.mscale(weight).powi(2) as f32,
            _ => 1.0,
        },
        _ => 1.0,
    }
}
