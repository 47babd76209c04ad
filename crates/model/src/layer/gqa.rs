//! Grouped-query attention (Ainslie et al., 2023).

use super::kind::Stages;
use super::{Found, Kept, Kind, KvHeads, Linear, MixerKind, Norm, Packed, PlannedTensors};
use crate::arch::{Fused, NormKind, Part as Name};
use crate::device::Device;
use crate::error::ModelError;
use crate::export::{Listing, Order, Source, biased};
use crate::load::{LinearPlan, Lookup, NormPlan, Packer, Projection, Rows};
use crate::parameters::Parameters;

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
    /// Index of the spec's rotary embedding that rotates q and k, or `None` where none does.
    pub rope: Option<usize>,
    /// Factor of the slope of each head by which scores fall with distance (ALiBi), or `None` where
    /// they do not.
    pub alibi: Option<f32>,
    /// Learned biases of the scores by distance, or `None` where there are none.
    pub relative: Option<RelativeBias>,
    /// Factor of the scores.
    pub scale: f32,
    /// `tanh` soft cap on the scores, or `None`.
    pub softcap: Option<f32>,
    /// Attention window in tokens, the token itself included, or `None` for full attention.
    pub window: Option<usize>,
    /// Whether a token sees only itself and the tokens before it; if not, a window reaches as far
    /// after the token as before it.
    pub is_causal: bool,
    /// Positions of a segment, beyond which attention does not see, or `None` for one segment.
    pub segment: Option<usize>,
    /// Whether each head has a learned logit without a value in its softmax.
    pub has_sinks: bool,
    /// Growth of queries with their position.
    pub temperature: Option<Temperature>,
    /// Whether each head's output is multiplied by the sigmoid of a gate, projected as queries are.
    pub is_gated: bool,
    /// The earlier layer whose keys and values it reads; it then has queries alone and stores nothing
    /// (Brandon et al., 2024).
    pub kv_of: Option<usize>,
    /// Whether values are projected by the matrix of keys.
    pub values_are_keys: bool,
    /// Whether each head of v is divided by its RMS.
    pub norms_values: bool,
}

/// Learned biases of scores by distance, which all layers share (Raffel et al., 2020: T5).
///
/// Distances up to half of the buckets have one each; farther ones share buckets that grow
/// logarithmically up to `max_distance`. Where a token sees those after it, these have half of all.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RelativeBias {
    /// Rows of the table, `[n_buckets, n_heads]`.
    pub n_buckets: usize,
    /// Distance from which on the last bucket is used.
    pub max_distance: usize,
}

impl RelativeBias {
    /// The bucket of a key `ahead` positions after the query (before it where negative).
    ///
    /// In f32, as the models were trained: at powers of the base the last bit decides.
    pub fn bucket(&self, ahead: isize, is_causal: bool) -> usize {
        let Self { mut n_buckets, max_distance } = *self;
        let mut first = 0;
        let distance = match is_causal {
            true => ahead.min(0).unsigned_abs(),
            false => {
                n_buckets /= 2;
                first = if ahead > 0 { n_buckets } else { 0 };
                ahead.unsigned_abs()
            }
        };
        let n_exact = n_buckets / 2;
        if distance < n_exact {
            return first + distance;
        }
        let base = (max_distance as f64 / n_exact as f64).ln() as f32;
        let log = (distance as f32 / n_exact as f32).ln() / base;
        let far = n_exact + (log * (n_buckets - n_exact) as f32) as usize;
        first + far.min(n_buckets - 1)
    }

    /// The bias of each head at distances from `-max_distance` to `max_distance`,
    /// `[n_heads, 2 * max_distance + 1]`, from the table `[n_buckets, n_heads]`.
    pub(crate) fn by_distance(&self, table: &[f32], is_causal: bool) -> Vec<f32> {
        let n_heads = table.len() / self.n_buckets;
        let most = self.max_distance as isize;
        let of_head = |head: usize| {
            let bias = move |ahead| table[self.bucket(ahead, is_causal) * n_heads + head];
            (-most..=most).map(bias)
        };
        (0..n_heads).flat_map(of_head).collect()
    }
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

impl Gqa {
    /// Width of all query heads together, in elements.
    pub fn q_width(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Width of all key heads together, in elements.
    pub fn kv_width(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    /// Width of the gate of the output, where there is one, in elements.
    pub fn gate_width(&self) -> usize {
        if self.is_gated { self.q_width() } else { 0 }
    }

    /// Width of the gate of the output, where there is one, q, and k and v, where they are not those of
    /// another layer, in elements.
    pub fn qkv_width(&self) -> usize {
        self.gate_width() + self.q_width() + 2 * self.n_own_kv_heads() * self.head_dim
    }

    /// Key/value heads that it projects: none where it reads those of another layer.
    pub fn n_own_kv_heads(&self) -> usize {
        if self.kv_of.is_some() { 0 } else { self.n_kv_heads }
    }

    /// Biases by distance of all heads.
    fn n_bias_elements(&self) -> usize {
        self.relative.map_or(0, |bias| self.n_heads * (2 * bias.max_distance + 1))
    }

    /// Keys and values of a token.
    pub(crate) fn kv_heads(&self) -> KvHeads {
        let dim = self.head_dim;
        KvHeads { n: self.n_kv_heads, key_dim: dim, value_dim: dim, values_in_keys: false }
    }
}

/// Packed weights of grouped-query attention.
#[derive(Debug)]
pub struct GqaWeights<B: Device> {
    /// The gate of the output, where there is one, q, and its own k and v stacked: `[qkv_width, hidden]`.
    pub qkv: Linear<B>,
    /// Norm of q, as the [`Gqa`] says: the weight of a head, or of all heads.
    pub q_norm: Option<Norm<B>>,
    /// Norm of k, likewise.
    pub k_norm: Option<Norm<B>>,
    /// Norm of each head of v; its weight is 1.
    pub v_norm: Option<Norm<B>>,
    /// Slope of each head's scores over distance, `[n_heads]`.
    pub slopes: Option<B::Vector>,
    /// Bias of each head's scores by distance, `[n_heads, 2 * max_distance + 1]`.
    pub bias: Option<B::Vector>,
    /// Logit of each head that has no value, `[n_heads]`.
    pub sinks: Option<B::Vector>,
    /// `[hidden, q_width]`.
    pub out: Linear<B>,
}

/// Tensors of grouped-query attention.
pub struct GqaPlan<'a> {
    qkv: LinearPlan<'a>,
    q_norm: Option<NormPlan<'a>>,
    k_norm: Option<NormPlan<'a>>,
    v_norm: Option<NormPlan<'a>>,
    slopes: Option<Vec<f32>>,
    /// The table of biases of all layers.
    bias: Option<NormPlan<'a>>,
    /// Biases by distance that are made of it.
    n_bias: usize,
    sinks: Option<NormPlan<'a>>,
    out: LinearPlan<'a>,
    /// Rows of a head, and how many of them lie in pairs where a file has them in pairs.
    pairs: Option<[usize; 2]>,
}

impl Kind for Gqa {
    type Plan<'a> = GqaPlan<'a>;
    type Weights<B: Device> = GqaWeights<B>;

    fn n_weights(&self, hidden_size: usize) -> usize {
        hidden_size * (self.qkv_width() + self.q_width())
    }

    fn parameters(&self, hidden_size: usize, _head_rows: usize) -> Parameters {
        let has_kv = self.kv_of.is_none();
        let norms = match self.qk_norm {
            None => 0,
            Some(QkNorm::HeadRms | QkNorm::HeadRmsBare) => {
                (1 + usize::from(has_kv)) * self.head_dim
            }
            Some(QkNorm::WholeRms | QkNorm::HeadLayer) => self.q_width() + self.kv_width(),
        };
        Parameters::products(&[[self.qkv_width(), hidden_size], [hidden_size, self.q_width()]])
            .vector(self.qkv_bias, self.qkv_width())
            .vector(self.out_bias, hidden_size)
            .vector(true, norms)
            .vector(self.norms_values && has_kv, self.head_dim)
            .vector(self.alibi.is_some(), self.n_heads)
            .vector(self.has_sinks, self.n_heads)
            .vector(self.relative.is_some(), self.n_bias_elements())
    }
}

impl MixerKind for Gqa {
    fn n_heads(&self) -> usize {
        self.n_heads
    }

    fn kept(&self) -> Kept {
        match self.kv_of {
            Some(_) => Kept::default(),
            None => Kept::pages(self.kv_heads()),
        }
    }

    fn window(&self) -> Option<usize> {
        self.window
    }

    fn is_causal(&self) -> bool {
        self.is_causal
    }

    fn query_width(&self) -> usize {
        self.qkv_width()
    }

    fn out_width(&self) -> usize {
        self.q_width()
    }

    fn out<B: Device>(weights: &GqaWeights<B>) -> Option<&Linear<B>> {
        Some(&weights.out)
    }
}

impl<'a> Found<'a> for GqaPlan<'a> {
    fn tensors(&self) -> PlannedTensors<'_, 'a> {
        let GqaPlan { qkv, q_norm, k_norm, v_norm, slopes, n_bias, sinks, out, .. } = self;
        PlannedTensors {
            linears: vec![qkv, out],
            by_head: Vec::new(),
            vectors: [q_norm, k_norm, v_norm, sinks].into_iter().flatten().collect(),
            n_made: slopes.as_ref().map_or(0, Vec::len) + n_bias,
        }
    }
}

impl<B: Device> Packed<B> for GqaWeights<B> {
    fn matrices(&self) -> Vec<&B::Weight> {
        [&self.qkv, &self.out].into_iter().flat_map(Linear::weights).collect()
    }

    fn inputs(&self) -> Vec<&Linear<B>> {
        vec![&self.qkv]
    }
}

impl Stages for Gqa {
    fn plan<'a>(&self, lookup: &Lookup<'a, '_>, layer: usize) -> Result<GqaPlan<'a>, ModelError> {
        let hidden = lookup.spec.hidden_size;
        let pairs = self.rope.map(|rope| [self.head_dim, lookup.spec.ropes[rope].rotary_dim]);
        let stored_pairs = pairs.filter(|_| lookup.stored.is_in_pairs);
        let norm = |name, n_heads| self.plan_norm(lookup, layer, name, n_heads, stored_pairs);
        let out = Projection { name: Name::O, rows: Rows::all(hidden) };
        let qkv = self.projections(lookup, layer, stored_pairs);
        Ok(GqaPlan {
            qkv: lookup.linear(layer, &qkv, hidden, self.qkv_bias)?,
            q_norm: norm(Name::QNorm, self.n_heads)?,
            k_norm: match self.kv_of {
                Some(_) => None,
                None => norm(Name::KNorm, self.n_kv_heads)?,
            },
            v_norm: (self.norms_values && self.kv_of.is_none()).then(|| NormPlan {
                weights: Vec::new(),
                bias: None,
                rows: Rows::all(self.head_dim),
                offset: 0.0,
            }),
            slopes: self.alibi.map(|factor| alibi_slopes(self.n_heads, factor)),
            bias: (self.relative)
                .map(|bias| lookup.distance_bias([bias.n_buckets, self.n_heads]))
                .transpose()?,
            n_bias: self.n_bias_elements(),
            sinks: (self.has_sinks)
                .then(|| lookup.vector(Name::Sinks, layer, self.n_heads))
                .transpose()?,
            out: lookup.linear(layer, &[out], self.q_width(), self.out_bias)?,
            pairs,
        })
    }

    fn pack<B: Device>(
        &self,
        plan: &GqaPlan<'_>,
        packer: &mut Packer<'_, B>,
    ) -> Result<GqaWeights<B>, ModelError> {
        let eps = packer.spec.norm_eps;
        let mut norm = |norm: &Option<NormPlan<'_>>| {
            // `qk_norm` says what kind of norm it is.
            norm.as_ref().map(|norm| packer.norm(norm, NormKind::Rms, eps)).transpose()
        };
        Ok(GqaWeights {
            q_norm: norm(&plan.q_norm)?,
            k_norm: norm(&plan.k_norm)?,
            v_norm: norm(&plan.v_norm)?,
            qkv: packer.linear(&plan.qkv)?,
            slopes: plan.slopes.as_ref().map(|slopes| packer.put(slopes)),
            bias: match (self.relative, &plan.bias) {
                (Some(relative), Some(table)) => {
                    let table = packer.read(table)?;
                    Some(packer.put(&relative.by_distance(&table, self.is_causal)))
                }
                _ => None,
            },
            sinks: plan.sinks.as_ref().map(|sinks| packer.vector(sinks)).transpose()?,
            out: packer.linear(&plan.out)?,
        })
    }

    fn list<'a>(
        &self,
        plan: GqaPlan<'a>,
        layer: usize,
        list: &mut Listing<'a, '_>,
    ) -> Result<(), ModelError> {
        let pairs = plan.pairs.filter(|_| list.naming.stored.is_in_pairs).map(Order::Pairs);
        let mut projections = biased(plan.qkv);
        if let Some(gate) = self.is_gated.then(|| projections.next()).flatten() {
            let (outer, inner) = (2, self.n_heads);
            let by_head = Order::Swapped { first: 0, run: self.head_dim, outer, inner };
            let both = projections.next().into_iter().chain([gate]).collect();
            list.stacked(Name::Q, layer, both, Some(by_head))?;
        }
        if list.naming.stored.qkv == Fused::Stacked && !self.is_gated && pairs.is_none() {
            list.stacked(Name::Qkv, layer, projections.by_ref().collect(), None)?;
        }
        let names =
            if self.is_gated { &[Name::K, Name::V][..] } else { &[Name::Q, Name::K, Name::V] };
        for (&name, projection) in names.iter().zip(projections) {
            let pairs = pairs.filter(|_| name != Name::V);
            list.projection(name, layer, projection, pairs)?;
        }
        list.only(Name::O, layer, plan.out)?;
        if let Some(NormPlan { weights, rows, .. }) = plan.sinks {
            let name = list.naming.weight(Name::Sinks, layer);
            list.vector(name, Source::plain(weights, rows));
        }
        for (name, norm, n_heads) in
            [(Name::QNorm, plan.q_norm, self.n_heads), (Name::KNorm, plan.k_norm, self.n_kv_heads)]
        {
            match (norm, self.qk_norm) {
                // Each head has weights of its own.
                (Some(NormPlan { weights, rows, .. }), Some(QkNorm::HeadLayer)) => {
                    let source = Source::plain(weights, rows).ordered(pairs);
                    let name = list.naming.weight(name, layer);
                    list.shaped(name, vec![n_heads, self.head_dim], source);
                }
                (norm, _) => list.norm(name, layer, norm, pairs),
            }
        }
        Ok(())
    }
}

impl Gqa {
    /// q, k and v, each from the tensor that holds it.
    fn projections(
        &self,
        lookup: &Lookup<'_, '_>,
        layer: usize,
        pairs: Option<[usize; 2]>,
    ) -> Vec<Projection> {
        let (q, kv, dim) = (self.q_width(), self.kv_width(), self.head_dim);
        let is_apart = || lookup.naming.stems(Name::Q, layer).any(|stem| lookup.has(&stem));
        let (fused, group) = (q + 2 * kv, self.n_heads / self.n_kv_heads * dim);
        let of_stack = |n, first, pairs| Projection {
            name: Name::Qkv,
            rows: Rows { n, first, run: n, filled: n, stride: n, pairs, ..Rows::all(fused) },
        };
        let of_groups = |n, first, run, pairs| Projection {
            name: Name::Qkv,
            rows: Rows {
                n,
                first,
                run,
                filled: run,
                stride: group + 2 * dim,
                pairs,
                ..Rows::all(fused)
            },
        };
        let alone = |name, n, pairs| Projection { name, rows: Rows { pairs, ..Rows::all(n) } };
        if self.kv_of.is_some() {
            return vec![alone(Name::Q, q, pairs)];
        }
        if self.values_are_keys {
            let keys = |pairs| alone(Name::K, kv, pairs);
            return vec![alone(Name::Q, q, pairs), keys(pairs), keys(None)];
        }
        if self.is_gated {
            // A head of queries, then its gate.
            let of_heads = |first| Projection {
                name: Name::Q,
                rows: Rows {
                    n: q,
                    first,
                    run: dim,
                    filled: dim,
                    stride: 2 * dim,
                    ..Rows::all(2 * q)
                },
            };
            let (k, v) = (alone(Name::K, kv, pairs), alone(Name::V, kv, None));
            return vec![of_heads(dim), of_heads(0), k, v];
        }
        match lookup.stored.qkv {
            Fused::Stacked if !is_apart() => {
                vec![of_stack(q, 0, pairs), of_stack(kv, q, pairs), of_stack(kv, q + kv, None)]
            }
            Fused::Grouped if !is_apart() => vec![
                of_groups(q, 0, group, pairs),
                of_groups(kv, group, dim, pairs),
                of_groups(kv, group + dim, dim, None),
            ],
            _ => {
                vec![alone(Name::Q, q, pairs), alone(Name::K, kv, pairs), alone(Name::V, kv, None)]
            }
        }
    }

    /// The norm of `n_heads` heads of q or k.
    fn plan_norm<'a>(
        &self,
        lookup: &Lookup<'a, '_>,
        layer: usize,
        name: Name,
        n_heads: usize,
        pairs: Option<[usize; 2]>,
    ) -> Result<Option<NormPlan<'a>>, ModelError> {
        let Some(kind) = self.qk_norm else { return Ok(None) };
        let (dim, width) = (self.head_dim, n_heads * self.head_dim);
        let stem = format!("{}.weight", lookup.stem(name, layer));
        let (weights, n) = match kind {
            QkNorm::HeadRms => (vec![lookup.find(&stem, &[dim])?], dim),
            QkNorm::HeadRmsBare => (Vec::new(), dim),
            QkNorm::WholeRms => (vec![lookup.find(&stem, &[width])?], width),
            QkNorm::HeadLayer if stem.contains('*') => {
                let of_head =
                    |head: usize| lookup.find(&stem.replace('*', &head.to_string()), &[dim]);
                ((0..n_heads).map(of_head).collect::<Result<_, _>>()?, width)
            }
            QkNorm::HeadLayer => (vec![lookup.find(&stem, &[n_heads, dim])?], width),
        };
        let rows = Rows { pairs, ..Rows::all(n) };
        Ok(Some(NormPlan { weights, bias: None, rows, offset: lookup.stored.norm_offset }))
    }
}

/// How fast the scores of each head fall (Press et al., 2022): powers of `2^(-8 / n)` for a power
/// of two `n`; the heads beyond it take every second slope of twice as many heads.
fn alibi_slopes(n_heads: usize, factor: f32) -> Vec<f32> {
    let n_first = if n_heads.is_power_of_two() { n_heads } else { n_heads.next_power_of_two() / 2 };
    let slope = |exponent: usize, n: usize| (-8.0 * exponent as f64 / n as f64).exp2() as f32;
    let first = (1..=n_first).map(|i| slope(i, n_first));
    let rest = (0..n_heads - n_first).map(|i| slope(2 * i + 1, 2 * n_first));
    first.chain(rest).map(|slope| slope * factor).collect()
}
