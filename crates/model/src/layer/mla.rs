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
use pelton_quant::checkpoint::QuantizedTensor;

use super::kind::Stages;
use super::{Found, Kept, Kind, KvHeads, Linear, MixerKind, Norm, Packed, PlannedTensors};
use crate::arch::{NormKind, Part as Name};
use crate::config::HfConfig;
use crate::device::Device;
use crate::error::ModelError;
use crate::export::{Listing, biased};
use crate::fields::ConfigError;
use crate::load::{LinearPlan, Lookup, NormPlan, Packer, Part, Projection, Rows, Turned};
use crate::parameters::Parameters;
use crate::rope::RopeScaling;

/// Added to the mean square of latents, whatever other norms add.
const LATENT_NORM_EPS: f32 = 1e-6;

/// Multi-head latent attention.
#[derive(Clone, Debug, PartialEq)]
pub struct Mla {
    /// Query heads.
    pub n_heads: usize,
    /// Elements of the latent that queries are made of, or `None` where they are projected at once.
    pub q_rank: Option<usize>,
    /// Elements of the latent that keys and values are made of.
    pub kv_rank: usize,
    /// Elements of a head's key that come from the latent.
    pub nope_dim: usize,
    /// Elements of a key that are the same for all heads; they are rotated, and even, where there is a
    /// rotation.
    pub rope_dim: usize,
    /// Elements of a head's value.
    pub value_dim: usize,
    /// Whether the projections from and to the residual stream carry a bias.
    pub bias: bool,
    /// Index of the spec's rotary embedding that rotates; `None` where nothing is rotated.
    pub rope: Option<usize>,
    /// Whether elements that are rotated together are neighbours, instead of half of `rope_dim`
    /// apart.
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

    /// Latent attention as a config describes it, over the first rotary embedding.
    pub(crate) fn read(cfg: &HfConfig, is_rope_in_pairs: bool) -> Result<Self, ConfigError> {
        let rope_field = cfg.field("qk_rope_head_dim");
        let rope_dim = rope_field.count(limits::MODEL_WIDTH)?;
        if !rope_dim.is_multiple_of(2) {
            return Err(rope_field.error("an even width"));
        }
        if cfg.rope.rotary_dim != rope_dim {
            let field = cfg.field("head_dim");
            return Err(field.error(format!("{rope_dim}, the width of what is rotated")));
        }
        let mla = Self::read_unrotated(cfg)?;
        let scale = mla.scale * yarn_scale(&cfg.rope.scaling);
        Ok(Self { rope: Some(0), is_rope_in_pairs, scale, ..mla })
    }

    /// Latent attention as a config describes it, with nothing rotated.
    pub(crate) fn read_unrotated(cfg: &HfConfig) -> Result<Self, ConfigError> {
        let width = |name: &str| cfg.field(name).count(limits::MODEL_WIDTH);
        let rope_dim = width("qk_rope_head_dim")?;
        let q_rank = cfg.field("q_lora_rank");
        let bias = cfg.attention_bias.unwrap_or(false);
        if bias && q_rank.non_null().is_none() {
            let field = cfg.field("attention_bias");
            return Err(field.error("false where `q_lora_rank` is null"));
        }
        let nope_dim = width("qk_nope_head_dim")?;
        let value_field = cfg.field("v_head_dim");
        let value_dim = match value_field.non_null() {
            Some(field) => field.count(limits::MODEL_WIDTH)?,
            // Configs of MiniCPM3 leave it out.
            None => cfg.hidden_size / cfg.num_attention_heads,
        };
        if value_dim == 0 {
            return Err(value_field.error("a width of at least 1"));
        }
        let mla = Self {
            n_heads: cfg.num_attention_heads,
            q_rank: q_rank.non_null().map(|field| field.count(limits::MODEL_WIDTH)).transpose()?,
            kv_rank: width("kv_lora_rank")?,
            nope_dim,
            rope_dim,
            value_dim,
            bias,
            rope: None,
            is_rope_in_pairs: false,
            scale: ((nope_dim + rope_dim) as f32).sqrt().recip(),
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

/// Packed weights of latent attention.
#[derive(Debug)]
pub struct MlaWeights<B: Device> {
    /// The latent that queries are made of, or the queries themselves, then the latent of keys and
    /// values, then the rotated key: `[down_width, hidden]`.
    pub down: Linear<B>,
    /// Norm of the latent that queries are made of, `[q_rank]`; absent where queries are projected
    /// at once.
    pub q_norm: Option<Norm<B>>,
    /// `[q_width, q_rank]`, likewise.
    pub q_up: Option<Linear<B>>,
    /// Norm of latents, `[kv_rank]`.
    pub kv_norm: Norm<B>,
    /// Takes the unrotated queries of a head to latents: `[n_heads * kv_rank, nope_dim]`, each head
    /// padded to a multiple of [`Device::HEAD_ROWS`] rows.
    pub k_up: B::Weight,
    /// Takes the latents of a head to its values: `[n_heads * value_dim, kv_rank]`, padded
    /// likewise.
    pub v_up: B::Weight,
    /// `[hidden, out_width]`.
    pub out: Linear<B>,
}

/// Tensors of latent attention.
pub struct MlaPlan<'a> {
    pub(crate) down: LinearPlan<'a>,
    pub(crate) q_norm: Option<NormPlan<'a>>,
    pub(crate) q_up: Option<LinearPlan<'a>>,
    pub(crate) kv_norm: NormPlan<'a>,
    k_up: Part<'a>,
    pub(crate) v_up: Part<'a>,
    pub(crate) out: LinearPlan<'a>,
}

impl Kind for Mla {
    type Plan<'a> = MlaPlan<'a>;
    type Weights<B: Device> = MlaWeights<B>;

    fn n_weights(&self, hidden_size: usize) -> usize {
        let q_up = self.q_rank.map_or(0, |rank| rank * self.q_width());
        let kv_up = self.n_heads * self.kv_rank * (self.nope_dim + self.value_dim);
        hidden_size * (self.down_width() + self.out_width()) + q_up + kv_up
    }

    fn parameters(&self, hidden_size: usize, head_rows: usize) -> Parameters {
        let padded = |dim: usize| self.n_heads * dim.next_multiple_of(head_rows);
        let q_up = self.q_rank.map(|rank| Parameters::products(&[[self.q_width(), rank]]));
        Parameters::products(&[
            [self.down_width(), hidden_size],
            [padded(self.value_dim), self.kv_rank],
            [hidden_size, self.out_width()],
        ])
        .turned(padded(self.kv_rank), self.nope_dim)
        .and(q_up.unwrap_or_default())
        .vector(true, self.q_rank.unwrap_or(0) + self.kv_rank)
        .vector(self.bias, self.down_width() + hidden_size)
    }
}

impl MixerKind for Mla {
    fn n_heads(&self) -> usize {
        self.n_heads
    }

    fn kept(&self) -> Kept {
        let (key_dim, value_dim) = (self.key_dim(), self.kv_rank);
        Kept::pages(KvHeads { n: 1, key_dim, value_dim, values_in_keys: true })
    }

    fn window(&self) -> Option<usize> {
        None
    }

    fn is_causal(&self) -> bool {
        true
    }

    fn query_width(&self) -> usize {
        self.absorbed_width()
    }

    fn out_width(&self) -> usize {
        self.n_heads * self.value_dim
    }

    fn out<B: Device>(weights: &MlaWeights<B>) -> Option<&Linear<B>> {
        Some(&weights.out)
    }
}

impl<'a> Found<'a> for MlaPlan<'a> {
    fn tensors(&self) -> PlannedTensors<'_, 'a> {
        let MlaPlan { down, q_norm, q_up, kv_norm, k_up, v_up, out } = self;
        PlannedTensors {
            linears: [down, out].into_iter().chain(q_up).collect(),
            by_head: vec![k_up, v_up],
            vectors: q_norm.iter().chain([kv_norm]).collect(),
            n_made: 0,
        }
    }
}

impl<B: Device> Packed<B> for MlaWeights<B> {
    fn matrices(&self) -> Vec<&B::Weight> {
        let MlaWeights { down, q_up, k_up, v_up, out, .. } = self;
        let linears = [down, out].into_iter().chain(q_up);
        linears.flat_map(Linear::weights).chain([k_up, v_up]).collect()
    }

    fn inputs(&self) -> Vec<&Linear<B>> {
        vec![&self.down]
    }
}

impl Stages for Mla {
    fn plan<'a>(&self, lookup: &Lookup<'a, '_>, layer: usize) -> Result<MlaPlan<'a>, ModelError> {
        let hidden = lookup.spec.hidden_size;
        let all = |name, n| Projection { name, rows: Rows::all(n) };
        let q = if self.q_rank.is_some() { Name::QDown } else { Name::Q };
        let down = [all(q, self.q_down_width()), all(Name::KvDown, self.key_dim())];
        let q_norm = self.q_rank.map(|rank| lookup.weight_norm(Name::QNorm, layer, rank));
        let q_up = self
            .q_rank
            .map(|rank| lookup.linear(layer, &[all(Name::QUp, self.q_width())], rank, false));
        let [k_up, v_up] = self.plan_heads(lookup, layer)?;
        Ok(MlaPlan {
            down: lookup.linear(layer, &down, hidden, self.bias)?,
            q_norm: q_norm.transpose()?,
            q_up: q_up.transpose()?,
            kv_norm: lookup.weight_norm(Name::KNorm, layer, self.kv_rank)?,
            k_up,
            v_up,
            out: lookup.linear(layer, &[all(Name::O, hidden)], self.out_width(), self.bias)?,
        })
    }

    fn pack<B: Device>(
        &self,
        plan: &MlaPlan<'_>,
        packer: &mut Packer<'_, B>,
    ) -> Result<MlaWeights<B>, ModelError> {
        let mut norm = |norm| packer.norm(norm, NormKind::Rms, self.norm_eps);
        Ok(MlaWeights {
            q_norm: plan.q_norm.as_ref().map(&mut norm).transpose()?,
            kv_norm: norm(&plan.kv_norm)?,
            down: packer.linear(&plan.down)?,
            q_up: plan.q_up.as_ref().map(|q_up| packer.linear(q_up)).transpose()?,
            k_up: packer.matrix(&plan.k_up)?,
            v_up: packer.matrix(&plan.v_up)?,
            out: packer.linear(&plan.out)?,
        })
    }

    fn list<'a>(
        &self,
        plan: MlaPlan<'a>,
        layer: usize,
        list: &mut Listing<'a, '_>,
    ) -> Result<(), ModelError> {
        let q = if self.q_rank.is_some() { Name::QDown } else { Name::Q };
        for (name, projection) in [q, Name::KvDown].into_iter().zip(biased(plan.down)) {
            list.projection(name, layer, projection, None)?;
        }
        for projection in plan.q_up.map(biased).into_iter().flatten() {
            list.projection(Name::QUp, layer, projection, None)?;
        }
        self.list_heads(plan.k_up, plan.v_up, layer, list)?;
        list.only(Name::O, layer, plan.out)?;
        list.norm(Name::QNorm, layer, plan.q_norm, None);
        list.norm(Name::KNorm, layer, Some(plan.kv_norm), None);
        Ok(())
    }
}

impl Mla {
    /// The projections of keys and of values, head by head.
    ///
    /// They come from one matrix, or, where a converter has put them apart, from two
    /// `[n_heads, ..]`; the one of the keys is then turned already.
    fn plan_heads<'a>(
        &self,
        lookup: &Lookup<'a, '_>,
        layer: usize,
    ) -> Result<[Part<'a>; 2], ModelError> {
        let Mla { n_heads, kv_rank, nope_dim, value_dim, .. } = *self;
        let multiple = lookup.head_rows;
        if lookup.has(&lookup.stem(Name::KUp, layer)) {
            let apart = |name, n, k| {
                let view = lookup.weight(name, layer, &[n_heads, n, k])?;
                let rows = Rows::all(n_heads * n).padded(n, multiple);
                let part = Part { shape: vec![rows.n, k], rows, ..Part::whole(view) };
                Ok::<_, ModelError>(lookup.rounded(part))
            };
            return Ok([
                apart(Name::KUp, kv_rank, nope_dim)?,
                apart(Name::VUp, value_dim, kv_rank)?,
            ]);
        }
        let n_rows = nope_dim + value_dim;
        let whole = Projection { name: Name::KvUp, rows: Rows::all(n_heads * n_rows) };
        let values = Rows {
            n: n_heads * value_dim,
            first: nope_dim,
            run: value_dim,
            filled: value_dim,
            stride: n_rows,
            ..whole.rows
        };
        let values = Projection { rows: values.padded(value_dim, multiple), ..whole };
        let k_up = lookup.matrix(&whole, layer, kv_rank)?;
        let v_up = lookup.matrix(&values, layer, kv_rank)?;
        let n_padding = kv_rank.next_multiple_of(multiple) - kv_rank;
        let k_up = Part {
            shape: vec![n_heads * (kv_rank + n_padding), nope_dim],
            rows: Rows::all(n_heads * (kv_rank + n_padding)),
            turned: Some(Turned { n_heads, n_rows, n_taken: nope_dim, n_padding }),
            // The part of the values has the tensors.
            quantized: k_up.quantized.map(QuantizedTensor::without_views),
            ..k_up
        };
        let k_up = lookup.rounded(k_up);
        // A product of heads reads its inputs in their own order.
        let v_up = Part { quantized: v_up.quantized.map(QuantizedTensor::in_own_order), ..v_up };
        Ok([k_up, v_up])
    }

    /// Lists the projections of keys and values under the names of a GGUF file.
    fn list_heads<'a>(
        &self,
        k_up: Part<'a>,
        v_up: Part<'a>,
        layer: usize,
        list: &mut Listing<'a, '_>,
    ) -> Result<(), ModelError> {
        let Mla { n_heads, kv_rank, nope_dim, value_dim, .. } = *self;
        if !list.naming.stored.is_kv_up_split {
            let (name, part) = (list.naming.weight(Name::KvUp, layer), Part::whole(k_up.view));
            let shape = part.shape.clone();
            return list.matrix(name, vec![part.into()], shape, [None; 2]);
        }
        let mut stack = |name, part: Part<'a>, n, k| {
            let name = list.naming.weight(name, layer);
            list.matrix(name, vec![part.into()], vec![n_heads, n, k], [None; 2])
        };
        stack(Name::KUp, k_up, kv_rank, nope_dim)?;
        stack(Name::VUp, v_up, value_dim, kv_rank)
    }
}

/// Factor of the scores under YaRN: where a model sets `mscale_all_dim`, the square of the factor
/// that other models apply to queries and to keys.
fn yarn_scale(scaling: &RopeScaling) -> f32 {
    match scaling {
        RopeScaling::Yarn(yarn) => match yarn.mscale_all_dim {
            Some(weight) if weight != 0.0 => yarn.mscale(weight).powi(2) as f32,
            _ => 1.0,
        },
        _ => 1.0,
    }
}
