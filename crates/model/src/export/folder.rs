//! The tensors of a folder under the names and in the orders of a GGUF file.
//!
//! They are listed from the plan by which the model is loaded. The plan names the parts of
//! everything that checkpoints fuse, transpose or put in pairs:
//!
//! ```text
//! of a folder                                     of a file
//! experts.0.up_proj .. experts.n-1.up_proj        ffn_up_exps   [n_experts, ffn, k]
//! gate_up_proj, stacked, by turns or transposed   ffn_gate_exps, ffn_up_exps
//! kv_b_proj  | k | v | of each head               attn_k_b [n_heads, kv_rank, nope], turned
//!                                                 attn_v_b [n_heads, value, kv_rank]
//! rows of q and k by halves                       by pairs, where the family's files have them so
//! value heads of a recurrence by key head         by their number within a key head, likewise
//! A_log                                           ssm_a, -exp(A_log)
//! factors beside projections                      multiplied into the weights
//! ```

use pelton_tensor::DType;

use super::item::{Change, Item, Scaled, Source};
use super::metadata;
use super::order::Order;
use super::tensors::Formats;
use crate::arch::{ArchSpec, Part as Name};
use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::files::names::Naming;
use crate::load::{LayerPlan, LinearPlan, NormPlan, Part, Plan, Rows};

/// A projection, its bias where it has one, and the factors of both that files have in the weights.
pub(crate) struct Biased<'a> {
    pub(crate) part: Part<'a>,
    pub(crate) bias: Option<Part<'a>>,
    factors: [f32; 2],
}

/// Every tensor that the model of a folder needs, in the order of the file; `written` is the spec of
/// the file.
pub(super) fn of_folder<'a>(
    files: &'a ModelFiles,
    spec: &ArchSpec,
    written: &ArchSpec,
    formats: &Formats,
) -> Result<Vec<Item<'a>>, ModelError> {
    let plan = Plan::new(files, spec)?;
    let naming = Naming::of(&files.arch().gguf);
    let mut list = Listing { naming, formats, items: Vec::new() };
    for (name, values) in metadata::divisor_tensors(spec.ropes.first()) {
        let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let (gguf_name, shape) = (name.to_owned(), vec![values.len()]);
        list.items.push(Item { gguf_name, dtype: DType::F32, shape, source: Source::Made(bytes) });
    }
    let head = match plan.head {
        // Factors of the two ends make two tables of one.
        None if !written.tied_embeddings => Some(Part::whole(plan.embedding.view)),
        head => head,
    };
    let factor = |own: f32, written: f32| own / written;
    let of_embedding = factor(spec.embedding_scale, written.embedding_scale);
    list.table(Name::Embedding, Some(plan.embedding), of_embedding)?;
    list.table(Name::Positions, plan.positions, 1.0)?;
    list.table(Name::TokenTypes, plan.token_types, 1.0)?;
    list.norm(Name::EmbeddingNorm, 0, plan.embedding_norm, None);
    for (i, layer) in plan.layers.into_iter().enumerate() {
        list.layer(i, layer)?;
    }
    list.norm(Name::FinalNorm, 0, plan.final_norm, None);
    list.table(Name::Head, head, factor(spec.logit_scale, written.logit_scale))?;
    if let Some(NormPlan { weights, rows, .. }) = plan.head_bias {
        list.vector(naming.bias(Name::Head, 0), Source::plain(weights, rows));
    }
    Ok(list.items)
}

impl<'a> Source<'a> {
    /// A vector as it is.
    pub(crate) fn plain(weights: Vec<pelton_tensor::TensorView<'a>>, rows: Rows) -> Self {
        Self::Vector { weights, rows, order: None, change: Change::NONE }
    }

    /// A vector in this order.
    pub(crate) fn ordered(self, order: Option<Order>) -> Self {
        match self {
            Self::Vector { weights, rows, change, .. } => {
                Self::Vector { weights, rows, order, change }
            }
            other => other,
        }
    }
}

/// The tensors listed so far.
pub(crate) struct Listing<'a, 'f> {
    /// How the file calls tensors.
    pub(crate) naming: Naming,
    formats: &'f Formats,
    items: Vec<Item<'a>>,
}

impl<'a> Listing<'a, '_> {
    fn layer(&mut self, i: usize, plan: LayerPlan<'a>) -> Result<(), ModelError> {
        self.norm(Name::AttentionNorm, i, plan.attention_norm, None);
        plan.attention.list(i, self)?;
        self.norm(Name::AttentionPostNorm, i, plan.attention_post_norm, None);
        self.norm(Name::MlpNorm, i, plan.mlp_norm, None);
        plan.mlp.list(i, self)?;
        self.norm(Name::MlpPostNorm, i, plan.mlp_post_norm, None);
        Ok(())
    }

    /// A projection that stands alone.
    pub(crate) fn only(
        &mut self,
        name: Name,
        layer: usize,
        plan: LinearPlan<'a>,
    ) -> Result<(), ModelError> {
        biased(plan).try_for_each(|projection| self.projection(name, layer, projection, None))
    }

    pub(crate) fn projection(
        &mut self,
        name: Name,
        layer: usize,
        projection: Biased<'a>,
        order: Option<Order>,
    ) -> Result<(), ModelError> {
        self.stacked(name, layer, vec![projection], order)
    }

    /// Projections in one tensor, which are put in `order` when they lie one after the other.
    pub(crate) fn stacked(
        &mut self,
        name: Name,
        layer: usize,
        projections: Vec<Biased<'a>>,
        order: Option<Order>,
    ) -> Result<(), ModelError> {
        let (mut parts, mut biases) = (Vec::new(), Vec::new());
        for Biased { part, bias, factors: [product, of_bias] } in projections {
            parts.push(Scaled { part, factor: product });
            biases.extend(bias.map(|part| Scaled { part, factor: of_bias }));
        }
        self.rows(self.naming.weight(name, layer), parts, [order, None])?;
        match biases.is_empty() {
            true => Ok(()),
            false => self.rows(self.naming.bias(name, layer), biases, [order, None]),
        }
    }

    /// A projection that stands alone and whose inputs have an order.
    pub(crate) fn of_ordered(
        &mut self,
        name: Name,
        layer: usize,
        plan: LinearPlan<'a>,
        inputs: Option<Order>,
    ) -> Result<(), ModelError> {
        biased(plan).try_for_each(|Biased { part, bias, factors }| {
            let [product, of_bias] = factors;
            let part = vec![Scaled { part, factor: product }];
            self.rows(self.naming.weight(name, layer), part, [None, inputs])?;
            let Some(part) = bias else { return Ok(()) };
            let bias = vec![Scaled { part, factor: of_bias }];
            self.rows(self.naming.bias(name, layer), bias, [None; 2])
        })
    }

    fn table(&mut self, name: Name, part: Option<Part<'a>>, factor: f32) -> Result<(), ModelError> {
        let Some(part) = part else { return Ok(()) };
        self.rows(self.naming.weight(name, 0), vec![Scaled { part, factor }], [None; 2])
    }

    /// Parts one after the other, in these orders of rows and of inputs.
    fn rows(
        &mut self,
        gguf_name: String,
        parts: Vec<Scaled<'a>>,
        orders: [Option<Order>; 2],
    ) -> Result<(), ModelError> {
        let mut shape = parts[0].part.shape.clone();
        shape[0] = parts.iter().map(|rows| rows.part.n()).sum();
        self.matrix(gguf_name, parts, shape, orders)
    }

    pub(crate) fn matrix(
        &mut self,
        gguf_name: String,
        parts: Vec<Scaled<'a>>,
        shape: Vec<usize>,
        [order, inputs]: [Option<Order>; 2],
    ) -> Result<(), ModelError> {
        let first = parts[0].part.dtype();
        // A matrix of several types is exact in f32.
        let is_uniform = parts.iter().all(|rows| rows.part.dtype() == first);
        let stored = if is_uniform { first } else { DType::F32 };
        let dtype = self.formats.stored_as(&gguf_name, stored, &shape, false)?;
        let source = Source::Matrix { parts, order, inputs };
        self.items.push(Item { gguf_name, dtype, shape, source });
        Ok(())
    }

    pub(crate) fn norm(
        &mut self,
        name: Name,
        layer: usize,
        plan: Option<NormPlan<'a>>,
        order: Option<Order>,
    ) {
        let Some(NormPlan { weights, bias, rows, offset }) = plan else { return };
        let offset = offset - self.naming.stored.norm_offset;
        if !weights.is_empty() {
            let source = Source::Vector { weights, rows, order, change: Change::Add(offset) };
            self.vector(self.naming.weight(name, layer), source);
        }
        if let Some(bias) = bias {
            self.vector(self.naming.bias(name, layer), Source::plain(vec![bias], rows));
        }
    }

    pub(crate) fn vector(&mut self, gguf_name: String, source: Source<'a>) {
        let Source::Vector { rows, .. } = &source else { return };
        let n = rows.n;
        self.shaped(gguf_name, vec![n], source);
    }

    /// The taps of a convolution over time, `[channels, taps]`.
    pub(crate) fn taps(
        &mut self,
        name: Name,
        layer: usize,
        NormPlan { weights, rows, .. }: NormPlan<'a>,
        taps: usize,
        order: Option<Order>,
    ) {
        let shape = vec![rows.n / taps, taps];
        let source = Source::plain(weights, rows).ordered(order);
        self.shaped(self.naming.weight(name, layer), shape, source);
    }

    /// A bias that is a vector of its own.
    pub(crate) fn bias(&mut self, name: Name, layer: usize, plan: Option<NormPlan<'a>>) {
        let Some(NormPlan { weights, rows, .. }) = plan else { return };
        self.vector(self.naming.bias(name, layer), Source::plain(weights, rows));
    }

    /// A vector whose name is that of its part alone.
    pub(crate) fn bare(
        &mut self,
        name: Name,
        layer: usize,
        NormPlan { weights, rows, .. }: NormPlan<'a>,
        shape: Vec<usize>,
    ) {
        self.shaped(self.naming.stem(name, layer), shape, Source::plain(weights, rows));
    }

    /// The factors of decays; `are_rates` where the plan has these and not their logarithms.
    pub(crate) fn decays(
        &mut self,
        layer: usize,
        NormPlan { weights, rows, .. }: NormPlan<'a>,
        are_rates: bool,
        shape: Vec<usize>,
        order: Option<Order>,
    ) {
        let change = if are_rates { Change::NONE } else { Change::DecayRate };
        let source = Source::Vector { weights, rows, order, change };
        self.shaped(self.naming.stem(Name::Decay, layer), shape, source);
    }

    /// A vector whose values the file has in this shape.
    pub(crate) fn shaped(&mut self, gguf_name: String, shape: Vec<usize>, source: Source<'a>) {
        self.items.push(Item { gguf_name, dtype: DType::F32, shape, source });
    }
}

/// Each projection with its bias.
pub(crate) fn biased<'a>(plan: LinearPlan<'a>) -> impl Iterator<Item = Biased<'a>> {
    let LinearPlan { parts, biases, factors, .. } = plan;
    let mut biases = biases.into_iter();
    let factors = factors.into_iter().map(|own| [own.product, own.bias]);
    let factors = factors.chain(std::iter::repeat([1.0; 2]));
    let projections = parts.into_iter().zip(factors);
    projections.map(move |(part, factors)| Biased { part, bias: biases.next(), factors })
}

/// Gate and up, which may be one projection.
pub(crate) fn gate_and_up(mut plan: LinearPlan<'_>) -> [Biased<'_>; 2] {
    if plan.parts.len() == 1 {
        plan.parts = plan.parts.iter().flat_map(halves).collect();
        plan.biases = plan.biases.iter().flat_map(halves).collect();
    }
    let mut both = biased(plan);
    [(); 2].map(|()| both.next().expect("invariant: a gate and an up"))
}

/// The first and the second half of a part's rows, which are all of their tensor's.
fn halves<'a>(part: &Part<'a>) -> [Part<'a>; 2] {
    let n = part.n() / 2;
    [0, n].map(|first| {
        let mut shape = part.shape.clone();
        shape[0] = n;
        let rows = Rows { n, first, run: n, filled: n, stride: n, ..Rows::all(2 * n) };
        let Part { view, is_transposed, turned, slice, factors, .. } = *part;
        let (quantized, rounded) = (None, None);
        Part { view, shape, rows, is_transposed, turned, quantized, slice, factors, rounded }
    })
}
