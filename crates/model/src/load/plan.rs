//! Every tensor that a spec asks for, looked up and checked before anything is packed.

mod experts;

use std::fmt::Write as _;

use pelton_quant::checkpoint::{QuantizedTensor, Scheme};
use pelton_quant::{Compute, QuantError, for_dtype, supported_names};
use pelton_tensor::{DType, TensorView};

pub(super) use super::part::{Part, Rows};
use super::turned::Turned;
use crate::arch::{
    ArchSpec, Fused, Gqa, LayerSpec, Mixer, Mla, Mlp, NormKind, Part as Name, QkNorm, Residual,
    Stored,
};
use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::files::names::Naming;
pub(super) use experts::{MoePlan, TwoPlan};

/// All tensors of a model.
pub(super) struct Plan<'a> {
    pub(super) embedding: Part<'a>,
    pub(super) positions: Option<Part<'a>>,
    pub(super) token_types: Option<Part<'a>>,
    pub(super) embedding_norm: Option<NormPlan<'a>>,
    pub(super) layers: Vec<LayerPlan<'a>>,
    pub(super) final_norm: Option<NormPlan<'a>>,
    pub(super) head: Option<Part<'a>>,
    pub(super) head_bias: Option<NormPlan<'a>>,
}

/// All tensors of a layer.
pub(super) struct LayerPlan<'a> {
    pub(super) attention_norm: Option<NormPlan<'a>>,
    /// q, k and v, or what they are made of.
    pub(super) qkv: LinearPlan<'a>,
    pub(super) latent: Option<LatentPlan<'a>>,
    pub(super) q_norm: Option<NormPlan<'a>>,
    pub(super) k_norm: Option<NormPlan<'a>>,
    pub(super) sinks: Option<NormPlan<'a>>,
    pub(super) out: LinearPlan<'a>,
    pub(super) attention_post_norm: Option<NormPlan<'a>>,
    pub(super) mlp_norm: Option<NormPlan<'a>>,
    pub(super) mlp: MlpPlan<'a>,
    pub(super) mlp_post_norm: Option<NormPlan<'a>>,
}

/// What latent attention has between its projections from and to the residual stream.
pub(super) struct LatentPlan<'a> {
    pub(super) q_up: Option<LinearPlan<'a>>,
    pub(super) k_up: Part<'a>,
    pub(super) v_up: Part<'a>,
}

/// All tensors of a channel mixer.
pub(super) enum MlpPlan<'a> {
    Two(TwoPlan<'a>),
    Moe(Box<MoePlan<'a>>),
}

/// A norm's weight and bias: vectors that stay in f32.
pub(super) struct NormPlan<'a> {
    /// Of all heads, one after the other, where each has a tensor of its own; none without weight.
    pub(super) weights: Vec<TensorView<'a>>,
    pub(super) bias: Option<TensorView<'a>>,
    /// Which elements, in the order of the decoder.
    pub(super) rows: Rows,
    /// Added to each weight.
    pub(super) offset: f32,
}

/// Matrices stacked by rows, with their biases.
pub(super) struct LinearPlan<'a> {
    pub(super) parts: Vec<Part<'a>>,
    /// As many as parts, or none.
    pub(super) biases: Vec<Part<'a>>,
    pub(super) k: usize,
    /// Whether it is computed in f32 whatever the others are.
    pub(super) is_exact: bool,
}

impl<'a> NormPlan<'a> {
    /// Every stored tensor.
    pub(super) fn views(&self) -> impl Iterator<Item = &TensorView<'a>> {
        self.weights.iter().chain(&self.bias)
    }
}

impl<'a> LayerPlan<'a> {
    fn linears(&self) -> Vec<&LinearPlan<'a>> {
        let mut linears = vec![&self.qkv, &self.out];
        linears.extend(self.latent.as_ref().and_then(|latent| latent.q_up.as_ref()));
        match &self.mlp {
            MlpPlan::Two(two) => linears.extend(two.linears()),
            MlpPlan::Moe(moe) => linears.extend(moe.linears()),
        }
        linears
    }

    /// Matrices of heads, each of which is packed by itself.
    fn by_head(&self) -> impl Iterator<Item = &Part<'a>> {
        self.latent.iter().flat_map(|latent| [&latent.k_up, &latent.v_up])
    }

    fn correction(&self) -> &Option<NormPlan<'a>> {
        match &self.mlp {
            MlpPlan::Moe(moe) => &moe.correction,
            MlpPlan::Two(_) => &None,
        }
    }

    fn norms(&self) -> impl Iterator<Item = &NormPlan<'a>> {
        let norms =
            [&self.attention_norm, &self.attention_post_norm, &self.mlp_norm, &self.mlp_post_norm];
        norms.into_iter().flatten()
    }

    /// Vectors that are no norms of the kind that the spec names.
    fn vectors(&self) -> impl Iterator<Item = &NormPlan<'a>> {
        [&self.q_norm, &self.k_norm, &self.sinks, self.correction()].into_iter().flatten()
    }
}

impl<'a> LinearPlan<'a> {
    /// Rows of all parts.
    pub(super) fn n(&self) -> usize {
        self.parts.iter().filter(|part| !part.adds()).map(Part::n).sum()
    }

    /// The arithmetic of its weights where that of the model is `asked`.
    pub(super) fn compute(&self, asked: Compute) -> Compute {
        if self.is_exact { Compute::F32 } else { asked }
    }

    /// Neighbours of one type and order of inputs, which become one matrix.
    pub(super) fn runs(&self) -> impl Iterator<Item = &[Part<'a>]> {
        self.parts.chunk_by(|a, b| b.stacks_on(a))
    }
}

/// What a matrix is made of and how: the name of it in a cache of packed weights.
///
/// Two recipes are equal only if packing would read the same tensors in the same way:
/// `blk.0.attn_q.weight q8_0 [64, 64] 4 heads + blk.0.attn_k.weight ...`.
pub(super) fn recipe(parts: &[Part<'_>]) -> String {
    let mut text = String::new();
    for Part { view, rows, is_transposed, turned, quantized, slice, .. } in parts {
        let separator = if text.is_empty() { "" } else { " + " };
        let _ = write!(text, "{separator}{} {} {:?}", view.name, view.dtype.name(), view.shape);
        let _ = write!(text, "{rows}{}", if *is_transposed { " transposed" } else { "" });
        if let Some(turned) = turned {
            let _ = write!(text, "{turned}");
        }
        if let Some(slice) = slice {
            let _ = write!(text, " of expert {slice}");
        }
        if let Some(matrix) = quantized {
            let _ = match (matrix.columns(), matrix.order()) {
                (Some(columns), _) => write!(text, " ({}, inputs {columns:?})", matrix.words()),
                (None, Some(_)) => write!(text, " ({}, sorted)", matrix.words()),
                (None, None) => write!(text, " ({})", matrix.words()),
            };
        }
    }
    text
}

impl<'a> Plan<'a> {
    pub(super) fn new(files: &'a ModelFiles, spec: &ArchSpec) -> Result<Self, ModelError> {
        let naming = files.naming();
        let lookup = Lookup { files, naming, stored: naming.stored, spec, expert: None };
        let (hidden, vocab) = (spec.hidden_size, spec.vocab_size);
        let table = |name, n| {
            // Who looks up rows or picks tokens does not reorder inputs.
            let mut part = lookup.matrix(&Projection { name, rows: Rows::all(n) }, 0, hidden)?;
            part.quantized = part.quantized.map(QuantizedTensor::in_own_order);
            Ok::<_, ModelError>(part)
        };
        Ok(Self {
            embedding: table(Name::Embedding, vocab)?,
            positions: spec.positions.map(|p| table(Name::Positions, p.n_rows)).transpose()?,
            token_types: match spec.ends.n_token_types {
                0 => None,
                n => Some(table(Name::TokenTypes, n)?),
            },
            embedding_norm: lookup.optional_norm(spec.embedding_norm, Name::EmbeddingNorm, 0)?,
            layers: spec
                .layers
                .iter()
                .enumerate()
                .map(|(i, layer)| lookup.layer(i, layer))
                .collect::<Result<_, _>>()?,
            final_norm: lookup.optional_norm(spec.ends.final_norm, Name::FinalNorm, 0)?,
            head: (!spec.tied_embeddings).then(|| table(Name::Head, vocab)).transpose()?,
            head_bias: spec.head_bias.then(|| lookup.head_bias(vocab)).transpose()?,
        })
    }

    /// The parts of every matrix that is packed.
    pub(super) fn matrices(&self) -> Vec<&[Part<'a>]> {
        self.runs(Compute::Auto).into_iter().map(|(run, _)| run).collect()
    }

    /// The parts of every matrix that is packed, and the arithmetic of its weights where that of the
    /// model is `asked`.
    pub(super) fn runs(&self, asked: Compute) -> Vec<(&[Part<'a>], Compute)> {
        let alone = [&self.embedding].into_iter().chain(&self.positions).chain(&self.token_types);
        let by_head = self.layers.iter().flat_map(LayerPlan::by_head);
        let alone = by_head.chain(alone).chain(&self.head);
        (self.layers.iter())
            .flat_map(LayerPlan::linears)
            .flat_map(|linear| linear.runs().map(move |run| (run, linear.compute(asked))))
            .chain(alone.map(|part| (std::slice::from_ref(part), asked)))
            .collect()
    }

    /// Norms of the kind that the spec names.
    pub(super) fn norms(&self) -> impl Iterator<Item = &NormPlan<'a>> {
        let layers = self.layers.iter().flat_map(LayerPlan::norms);
        layers.chain(&self.embedding_norm).chain(&self.final_norm)
    }

    /// What is read as a norm's weight and has no bias.
    pub(super) fn vectors(&self) -> impl Iterator<Item = &NormPlan<'a>> {
        self.layers.iter().flat_map(LayerPlan::vectors).chain(&self.head_bias)
    }

    /// Biases of projections.
    pub(super) fn biases(&self) -> impl Iterator<Item = &Part<'a>> {
        self.layers.iter().flat_map(LayerPlan::linears).flat_map(|linear| &linear.biases)
    }

    /// Stored bytes of everything that is read.
    pub(super) fn n_bytes(&self) -> u64 {
        let parts = self.matrices().into_iter().flatten().chain(self.biases());
        let views = self.norms().chain(self.vectors()).flat_map(NormPlan::views);
        parts.map(|part| part.n_bytes() as u64).sum::<u64>()
            + views.map(|view| view.data.len() as u64).sum::<u64>()
    }
}

/// Finds tensors by name and checks them.
#[derive(Clone, Copy)]
struct Lookup<'a, 's> {
    files: &'a ModelFiles,
    naming: Naming,
    stored: &'static Stored,
    spec: &'s ArchSpec,
    /// Whose tensors are meant where a name has a `*` for an expert.
    expert: Option<usize>,
}

/// One projection: its name and rows, and how they are stored.
struct Projection {
    name: Name,
    rows: Rows,
}

impl<'a> Lookup<'a, '_> {
    fn layer(&self, layer: usize, spec: &LayerSpec) -> Result<LayerPlan<'a>, ModelError> {
        let hidden = self.spec.hidden_size;
        let wiring = spec.wiring;
        let norm = |is_there, name| self.optional_norm(is_there, name, layer);
        let has_attention_norm = wiring.pre_norm && (layer > 0 || self.spec.ends.first_norm);
        let has_mlp_norm = wiring.pre_norm && wiring.residual != Residual::ParallelOneNorm;
        let all = |name, n| Projection { name, rows: Rows::all(n) };
        let ffn = spec.mlp.intermediate_size();
        let two = |up: Vec<Projection>, bias| {
            Ok::<_, ModelError>(MlpPlan::Two(TwoPlan {
                up: self.linear(layer, &up, hidden, bias)?,
                down: self.linear(layer, &[all(Name::Down, hidden)], ffn, bias)?,
            }))
        };
        let mlp = || match &spec.mlp {
            Mlp::Plain(mlp) => two(vec![all(Name::Up, ffn)], mlp.bias),
            Mlp::Gated(mlp) if self.stored.is_gate_up_fused => {
                two(vec![all(Name::GateUp, 2 * ffn)], mlp.bias)
            }
            Mlp::Gated(mlp) => two(vec![all(Name::Gate, ffn), all(Name::Up, ffn)], mlp.bias),
            Mlp::Moe(moe) => Ok(MlpPlan::Moe(Box::new(self.moe(layer, moe)?))),
        };
        let (qkv, [qkv_bias, out_bias]) = match &spec.mixer {
            Mixer::Gqa(gqa) => (self.qkv(layer, gqa), [gqa.qkv_bias, gqa.out_bias]),
            Mixer::Mla(mla) => (self.latents(mla), [mla.bias; 2]),
        };
        let [q_norm, k_norm] = match &spec.mixer {
            Mixer::Gqa(gqa) => [
                self.qk_norm(Name::QNorm, layer, gqa, gqa.n_heads)?,
                self.qk_norm(Name::KNorm, layer, gqa, gqa.n_kv_heads)?,
            ],
            Mixer::Mla(mla) => [
                mla.q_rank.map(|n| self.latent_norm(Name::QNorm, layer, n)).transpose()?,
                Some(self.latent_norm(Name::KNorm, layer, mla.kv_rank)?),
            ],
        };
        let latent = match &spec.mixer {
            Mixer::Gqa(_) => None,
            Mixer::Mla(mla) => Some(self.latent(layer, mla)?),
        };
        let out = [all(Name::O, hidden)];
        Ok(LayerPlan {
            attention_norm: norm(has_attention_norm, Name::AttentionNorm)?,
            qkv: self.linear(layer, &qkv, hidden, qkv_bias)?,
            latent,
            q_norm,
            k_norm,
            sinks: match &spec.mixer {
                Mixer::Gqa(gqa) if gqa.has_sinks => {
                    Some(self.vector(Name::Sinks, layer, gqa.n_heads)?)
                }
                _ => None,
            },
            out: self.linear(layer, &out, spec.mixer.out_width(), out_bias)?,
            attention_post_norm: norm(wiring.post_norm, Name::AttentionPostNorm)?,
            mlp_norm: norm(has_mlp_norm, Name::MlpNorm)?,
            mlp: mlp()?,
            mlp_post_norm: norm(wiring.post_norm, Name::MlpPostNorm)?,
        })
    }

    /// q, k and v, each from the tensor that holds it.
    fn qkv(&self, layer: usize, gqa: &Gqa) -> Vec<Projection> {
        let (q, kv, dim) = (gqa.q_width(), gqa.kv_width(), gqa.head_dim);
        let pairs = self.pairs(gqa);
        let is_apart = || self.naming.stems(Name::Q, layer).any(|stem| self.has(&stem));
        let (fused, group) = (q + 2 * kv, gqa.n_heads / gqa.n_kv_heads * dim);
        let of_stack = |n, first, pairs| Projection {
            name: Name::Qkv,
            rows: Rows { n, n_stored: fused, first, run: n, stride: n, pairs },
        };
        let of_groups = |n, first, run, pairs| Projection {
            name: Name::Qkv,
            rows: Rows { n, n_stored: fused, first, run, stride: group + 2 * dim, pairs },
        };
        let alone = |name, n, pairs| Projection { name, rows: Rows { pairs, ..Rows::all(n) } };
        match self.stored.qkv {
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

    /// What latent attention projects from the residual stream.
    fn latents(&self, mla: &Mla) -> Vec<Projection> {
        let q = if mla.q_rank.is_some() { Name::QDown } else { Name::Q };
        let all = |name, n| Projection { name, rows: Rows::all(n) };
        vec![all(q, mla.q_down_width()), all(Name::KvDown, mla.key_dim())]
    }

    /// What latent attention has between its projections.
    fn latent(&self, layer: usize, mla: &Mla) -> Result<LatentPlan<'a>, ModelError> {
        let Mla { n_heads, kv_rank, nope_dim, value_dim, .. } = *mla;
        let q_up = mla.q_rank.map(|rank| {
            let up = Projection { name: Name::QUp, rows: Rows::all(mla.q_width()) };
            self.linear(layer, &[up], rank, false)
        });
        let q_up = q_up.transpose()?;
        if self.has(&self.stem(Name::KUp, layer)) {
            let apart = |name, n, k| {
                let view = self.weight(name, layer, &[n_heads, n, k])?;
                let (shape, rows) = (vec![n_heads * n, k], Rows::all(n_heads * n));
                Ok::<_, ModelError>(Part { shape, rows, ..Part::whole(view) })
            };
            let k_up = apart(Name::KUp, kv_rank, nope_dim)?;
            return Ok(LatentPlan { q_up, k_up, v_up: apart(Name::VUp, value_dim, kv_rank)? });
        }
        let n_rows = nope_dim + value_dim;
        let whole = Projection { name: Name::KvUp, rows: Rows::all(n_heads * n_rows) };
        let values = Rows { n: n_heads * value_dim, first: nope_dim, run: value_dim, ..whole.rows };
        let values = Projection { rows: Rows { stride: n_rows, ..values }, ..whole };
        let k_up = self.matrix(&whole, layer, kv_rank)?;
        let v_up = self.matrix(&values, layer, kv_rank)?;
        Ok(LatentPlan {
            q_up,
            k_up: Part {
                shape: vec![n_heads * kv_rank, nope_dim],
                rows: Rows::all(n_heads * kv_rank),
                turned: Some(Turned { n_heads, n_rows, n_taken: nope_dim }),
                // The values have the tensors.
                quantized: k_up.quantized.map(QuantizedTensor::without_views),
                ..k_up
            },
            // A product of heads takes its inputs as they are.
            v_up: Part { quantized: v_up.quantized.map(QuantizedTensor::in_own_order), ..v_up },
        })
    }

    /// The norm of a latent.
    fn latent_norm(&self, name: Name, layer: usize, n: usize) -> Result<NormPlan<'a>, ModelError> {
        let view = self.weight(name, layer, &[n])?;
        let offset = self.stored.norm_offset;
        Ok(NormPlan { weights: vec![view], bias: None, rows: Rows::all(n), offset })
    }

    /// Rows of a head, and how many of them lie in pairs, where any do.
    fn pairs(&self, gqa: &Gqa) -> Option<[usize; 2]> {
        let rotary_dim = self.spec.ropes[gqa.rope?].rotary_dim;
        self.stored.is_in_pairs.then_some([gqa.head_dim, rotary_dim])
    }

    fn linear(
        &self,
        layer: usize,
        projections: &[Projection],
        k: usize,
        has_bias: bool,
    ) -> Result<LinearPlan<'a>, ModelError> {
        let mut plan = LinearPlan { parts: Vec::new(), biases: Vec::new(), k, is_exact: false };
        let mut split = Vec::new();
        for (i, projection) in projections.iter().enumerate() {
            let &Projection { name, rows } = projection;
            let mut part = match self.stored.is_transposed {
                false => self.matrix(projection, layer, k)?,
                true => self.transposed(projection, layer, k)?,
            };
            if projections.get(i + 1).is_some_and(|next| next.name == name) {
                // The last of one module's parts has its tensors.
                part.quantized = part.quantized.map(QuantizedTensor::without_views);
            }
            split.push(part.split());
            if has_bias {
                let view = self.float(self.find(&self.bias(name, layer), &[rows.n_stored])?)?;
                plan.biases.push(Part { shape: vec![rows.n], rows, ..Part::whole(view) });
            }
        }
        plan.parts = stacked(split);
        Ok(plan)
    }

    /// Some rows of a matrix of one tensor, or of several where the checkpoint is quantized.
    fn matrix(
        &self,
        &Projection { name, rows }: &Projection,
        layer: usize,
        k: usize,
    ) -> Result<Part<'a>, ModelError> {
        let shape = vec![rows.n, k];
        if let Some(matrix) = self.quantized(name, layer, [rows.n_stored, k])? {
            let view = matrix.views()[0];
            let quantized = match rows == Rows::all(rows.n) {
                true => matrix,
                false => matrix.pick_rows(rows.sources().map(|row| row as u32)),
            };
            return Ok(Part {
                view,
                shape,
                rows,
                is_transposed: false,
                turned: None,
                quantized: Some(quantized),
                slice: None,
                factors: None,
            });
        }
        let view = self.weight(name, layer, &[rows.n_stored, k])?;
        Ok(Part { shape, rows, ..Part::whole(view) })
    }

    /// Some columns of a matrix `[in, out]` of plain floats, or rows of one that its method turned
    /// before it quantized it.
    fn transposed(
        &self,
        projection: &Projection,
        layer: usize,
        k: usize,
    ) -> Result<Part<'a>, ModelError> {
        let &Projection { name, rows } = projection;
        if let Some(scheme) = self.files.scheme() {
            let found = self.quantized(name, layer, [rows.n_stored, k]);
            if scheme.turns_transposed() {
                if found?.is_some() {
                    return self.matrix(projection, layer, k);
                }
            } else if !matches!(found, Ok(None)) {
                return Err(self.is_not_turned(name, layer, scheme));
            }
        }
        let view = self.float(self.weight(name, layer, &[k, rows.n_stored])?)?;
        Ok(Part { shape: vec![rows.n, k], rows, is_transposed: true, ..Part::whole(view) })
    }

    /// The error of a quantized matrix that may be stored in either way.
    fn is_not_turned(&self, name: Name, layer: usize, scheme: &Scheme) -> ModelError {
        let source = QuantError::Checkpoint {
            tensor: self.stem(name, layer),
            expected: "plain floats: the family stores its matrices transposed, and of quantized \
                       ones only those of GPTQ and bitsandbytes are known to be turned"
                .to_owned(),
            got: scheme.words(),
        };
        ModelError::Format { file: self.files.tensors().origin().to_owned(), source }
    }

    /// The matrix of a module that is quantized.
    fn quantized(
        &self,
        name: Name,
        layer: usize,
        shape: [usize; 2],
    ) -> Result<Option<QuantizedTensor<'a>>, ModelError> {
        let Some(scheme) = self.files.scheme() else { return Ok(None) };
        let tensors = self.files.tensors();
        scheme
            .find(tensors, &self.stem(name, layer), shape)
            .map_err(|source| ModelError::Format { file: tensors.origin().to_owned(), source })
    }

    fn norm(&self, name: Name, layer: usize) -> Result<NormPlan<'a>, ModelError> {
        let width = self.spec.hidden_size;
        let (has_weight, has_bias) = match self.spec.norm {
            NormKind::Rms => (true, false),
            NormKind::Layer { weight, bias } => (weight, bias),
        };
        let weight = has_weight.then(|| self.weight(name, layer, &[width])).transpose()?;
        let bias = || self.find(&self.bias(name, layer), &[width]);
        Ok(NormPlan {
            weights: weight.into_iter().collect(),
            bias: has_bias.then(bias).transpose()?,
            rows: Rows::all(width),
            offset: self.stored.norm_offset,
        })
    }

    fn optional_norm(
        &self,
        is_there: bool,
        name: Name,
        layer: usize,
    ) -> Result<Option<NormPlan<'a>>, ModelError> {
        is_there.then(|| self.norm(name, layer)).transpose()
    }

    /// The norm of `n_heads` heads of q or k.
    fn qk_norm(
        &self,
        name: Name,
        layer: usize,
        gqa: &Gqa,
        n_heads: usize,
    ) -> Result<Option<NormPlan<'a>>, ModelError> {
        let Some(kind) = gqa.qk_norm else { return Ok(None) };
        let (dim, width) = (gqa.head_dim, n_heads * gqa.head_dim);
        let stem = format!("{}.weight", self.stem(name, layer));
        let (weights, n) = match kind {
            QkNorm::HeadRms => (vec![self.find(&stem, &[dim])?], dim),
            QkNorm::HeadRmsBare => (Vec::new(), dim),
            QkNorm::WholeRms => (vec![self.find(&stem, &[width])?], width),
            QkNorm::HeadLayer if stem.contains('*') => {
                let of_head =
                    |head: usize| self.find(&stem.replace('*', &head.to_string()), &[dim]);
                ((0..n_heads).map(of_head).collect::<Result<_, _>>()?, width)
            }
            QkNorm::HeadLayer => (vec![self.find(&stem, &[n_heads, dim])?], width),
        };
        let rows = Rows { pairs: self.pairs(gqa), ..Rows::all(n) };
        Ok(Some(NormPlan { weights, bias: None, rows, offset: self.stored.norm_offset }))
    }

    fn head_bias(&self, vocab: usize) -> Result<NormPlan<'a>, ModelError> {
        let view = self.find(&self.bias(Name::Head, 0), &[vocab])?;
        let weights = vec![view];
        Ok(NormPlan { weights, bias: None, rows: Rows::all(vocab), offset: 0.0 })
    }

    /// Refuses a type whose elements cannot be taken one by one.
    fn float(&self, view: TensorView<'a>) -> Result<TensorView<'a>, ModelError> {
        let n_elements = view.n_elements().max(1);
        if view.data.len().is_multiple_of(n_elements) && view.data.len() / n_elements >= 2 {
            return Ok(view);
        }
        let source = QuantError::Unsupported {
            tensor: view.name.to_owned(),
            dtype: view.dtype,
            supported: "F32, F16, BF16 for a bias or a transposed matrix".to_owned(),
        };
        Err(ModelError::Format { file: self.files.tensors().origin().to_owned(), source })
    }

    fn weight(
        &self,
        name: Name,
        layer: usize,
        shape: &[usize],
    ) -> Result<TensorView<'a>, ModelError> {
        self.find(&format!("{}.weight", self.stem(name, layer)), shape)
    }

    fn bias(&self, name: Name, layer: usize) -> String {
        format!("{}.bias", self.stem(name, layer))
    }

    /// The first of a part's names that the checkpoint has.
    fn stem(&self, name: Name, layer: usize) -> String {
        let stems = self.naming.stems(name, layer);
        let mut stems = stems.map(|stem| match self.expert {
            Some(expert) => stem.replace('*', &expert.to_string()),
            None => stem,
        });
        let usual = stems.next().expect("invariant: every part has a name");
        match stems.next() {
            // Whether a quantized checkpoint has a name is not cheap to know.
            None => usual,
            Some(_) if self.has(&usual) => usual,
            Some(other) => {
                [other].into_iter().chain(stems).find(|stem| self.has(stem)).unwrap_or(usual)
            }
        }
    }

    /// Whether the checkpoint has a module of this name.
    fn has(&self, stem: &str) -> bool {
        let module = format!("{}.", stem.replace('*', "0"));
        let tensors = self.files.tensors();
        tensors.get(&format!("{module}weight")).is_some()
            || (self.files.scheme().is_some()
                && tensors.names().iter().any(|name| name.starts_with(&module)))
    }

    fn find(&self, name: &str, shape: &[usize]) -> Result<TensorView<'a>, ModelError> {
        self.find_as(name, shape, None)
    }

    /// A tensor of a type with a format, or of this one.
    fn find_as(
        &self,
        name: &str,
        shape: &[usize],
        dtype: Option<DType>,
    ) -> Result<TensorView<'a>, ModelError> {
        let file = || self.files.tensors().origin().to_owned();
        let Some(view) = self.files.tensors().get(name) else {
            return Err(ModelError::MissingTensor {
                file: file(),
                tensor: name.to_owned(),
                shape: shape.to_vec(),
            });
        };
        if view.shape != shape {
            return Err(ModelError::Shape {
                file: file(),
                tensor: name.to_owned(),
                expected: shape.to_vec(),
                found: view.shape.to_vec(),
            });
        }
        if dtype != Some(view.dtype) && (dtype.is_some() || for_dtype(view.dtype).is_none()) {
            let source = QuantError::Unsupported {
                tensor: name.to_owned(),
                dtype: view.dtype,
                supported: dtype.map_or_else(supported_names, |dtype| dtype.name().to_owned()),
            };
            return Err(ModelError::Format { file: file(), source });
        }
        Ok(view)
    }
}

/// Projections in blocks of inputs: of neighbours with the same blocks first all the first blocks,
/// then all the second ones, so that those of the same inputs become one matrix.
fn stacked<'a>(projections: Vec<Vec<Part<'a>>>) -> Vec<Part<'a>> {
    let same = |a: &[Part<'a>], b: &[Part<'a>]| {
        a.len() > 1 && a.len() == b.len() && a.iter().zip(b).all(|(a, b)| b.stacks_on(a))
    };
    let mut parts = Vec::new();
    let mut rest = projections.into_iter().peekable();
    while let Some(first) = rest.next() {
        let mut chunk = vec![first];
        while let Some(next) = rest.next_if(|next| same(&chunk[0], next)) {
            chunk.push(next);
        }
        let n_blocks = chunk[0].len();
        let mut blocks: Vec<_> = chunk.into_iter().map(Vec::into_iter).collect();
        for _ in 0..n_blocks {
            parts.extend(blocks.iter_mut().filter_map(Iterator::next));
        }
    }
    parts
}

/// The inverse of what loading does: rows of each head to pairs, as GGUF files of some families store
/// them.
pub(crate) fn interleave(data: &[u8], n_rows: usize, n_heads: usize) -> Vec<u8> {
    let (row_bytes, head_dim) = (data.len() / n_rows, n_rows / n_heads);
    let mut out = Vec::with_capacity(data.len());
    for row in 0..n_rows {
        let (head, i) = (row / head_dim, row % head_dim);
        let source = head * head_dim + i / 2 + head_dim / 2 * (i % 2);
        out.extend_from_slice(&data[source * row_bytes..][..row_bytes]);
    }
    out
}
