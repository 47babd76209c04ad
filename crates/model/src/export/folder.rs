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
//! ```

use pelton_tensor::DType;

use super::item::{Item, Source};
use super::metadata;
use super::tensors::Formats;
use crate::arch::{ArchSpec, Part as Name};
use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::files::names::Naming;
use crate::load::{LayerPlan, LinearPlan, NormPlan, Part, Plan, Rows};

/// A projection, and its bias where it has one.
pub(crate) type Biased<'a> = (Part<'a>, Option<Part<'a>>);

/// Every tensor that the model of a folder needs, in the order of the file.
pub(super) fn of_folder<'a>(
    files: &'a ModelFiles,
    spec: &ArchSpec,
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
    list.table(Name::Embedding, Some(plan.embedding))?;
    list.table(Name::Positions, plan.positions)?;
    list.table(Name::TokenTypes, plan.token_types)?;
    list.norm(Name::EmbeddingNorm, 0, plan.embedding_norm, None);
    for (i, layer) in plan.layers.into_iter().enumerate() {
        list.layer(i, layer)?;
    }
    list.norm(Name::FinalNorm, 0, plan.final_norm, None);
    list.table(Name::Head, plan.head)?;
    if let Some(NormPlan { weights, rows, .. }) = plan.head_bias {
        list.vector(naming.bias(Name::Head, 0), Source::plain(weights, rows));
    }
    Ok(list.items)
}

impl<'a> Source<'a> {
    /// A vector as it is.
    pub(crate) fn plain(weights: Vec<pelton_tensor::TensorView<'a>>, rows: Rows) -> Self {
        Self::Vector { weights, rows, pairs: None, offset: 0.0 }
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
        (part, bias): Biased<'a>,
        pairs: Option<[usize; 2]>,
    ) -> Result<(), ModelError> {
        let shape = part.shape.clone();
        self.matrix(self.naming.weight(name, layer), vec![part], shape, pairs)?;
        let Some(bias) = bias else { return Ok(()) };
        let shape = bias.shape.clone();
        self.matrix(self.naming.bias(name, layer), vec![bias], shape, pairs)
    }

    fn table(&mut self, name: Name, part: Option<Part<'a>>) -> Result<(), ModelError> {
        part.map_or(Ok(()), |part| self.projection(name, 0, (part, None), None))
    }

    pub(crate) fn matrix(
        &mut self,
        gguf_name: String,
        parts: Vec<Part<'a>>,
        shape: Vec<usize>,
        pairs: Option<[usize; 2]>,
    ) -> Result<(), ModelError> {
        let first = parts[0].dtype();
        // A matrix of several types is exact in f32.
        let is_uniform = parts.iter().all(|part| part.dtype() == first);
        let stored = if is_uniform { first } else { DType::F32 };
        let dtype = self.formats.stored_as(&gguf_name, stored, &shape, false)?;
        let source = Source::Matrix { parts, pairs };
        self.items.push(Item { gguf_name, dtype, shape, source });
        Ok(())
    }

    pub(crate) fn norm(
        &mut self,
        name: Name,
        layer: usize,
        plan: Option<NormPlan<'a>>,
        pairs: Option<[usize; 2]>,
    ) {
        let Some(NormPlan { weights, bias, rows, offset }) = plan else { return };
        let offset = offset - self.naming.stored.norm_offset;
        if !weights.is_empty() {
            let source = Source::Vector { weights, rows, pairs, offset };
            self.vector(self.naming.weight(name, layer), source);
        }
        if let Some(bias) = bias {
            self.vector(self.naming.bias(name, layer), Source::plain(vec![bias], rows));
        }
    }

    pub(crate) fn vector(&mut self, gguf_name: String, source: Source<'a>) {
        let Source::Vector { rows, .. } = &source else { return };
        self.items.push(Item { gguf_name, dtype: DType::F32, shape: vec![rows.n], source });
    }
}

/// Each projection with its bias.
pub(crate) fn biased<'a>(plan: LinearPlan<'a>) -> impl Iterator<Item = Biased<'a>> {
    let mut biases = plan.biases.into_iter();
    plan.parts.into_iter().map(move |part| (part, biases.next()))
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
        Part { view, shape, rows, is_transposed, turned, quantized: None, slice, factors }
    })
}
