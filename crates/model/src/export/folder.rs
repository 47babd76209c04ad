//! The tensors of a folder under the names and in the orders of a GGUF file.
//!
//! They are listed from the plan by which the model is loaded, where everything that checkpoints fuse,
//! transpose or put in pairs is named already:
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
use crate::arch::{ArchSpec, LayerSpec, Mixer, Mla, Mlp, Part as Name};
use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::files::names::Naming;
use crate::load::{LayerPlan, LinearPlan, MlpPlan, MoePlan, NormPlan, Part, Plan, Rows};

/// A projection, and its bias where it has one.
type Biased<'a> = (Part<'a>, Option<Part<'a>>);

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
    for (i, (plan, layer)) in plan.layers.into_iter().zip(&spec.layers).enumerate() {
        list.layer(i, plan, layer, spec)?;
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
    fn plain(weights: Vec<pelton_tensor::TensorView<'a>>, rows: Rows) -> Self {
        Self::Vector { weights, rows, pairs: None, offset: 0.0 }
    }
}

/// The items so far.
struct Listing<'a, 'f> {
    naming: Naming,
    formats: &'f Formats,
    items: Vec<Item<'a>>,
}

impl<'a> Listing<'a, '_> {
    fn layer(
        &mut self,
        i: usize,
        plan: LayerPlan<'a>,
        layer: &LayerSpec,
        spec: &ArchSpec,
    ) -> Result<(), ModelError> {
        self.norm(Name::AttentionNorm, i, plan.attention_norm, None);
        let (names, pairs): (&[Name], _) = match &layer.mixer {
            Mixer::Gqa(gqa) => {
                let rope = gqa.rope.filter(|_| self.naming.stored.is_in_pairs);
                let pairs = rope.map(|rope| [gqa.head_dim, spec.ropes[rope].rotary_dim]);
                (&[Name::Q, Name::K, Name::V], pairs)
            }
            Mixer::Mla(mla) if mla.q_rank.is_some() => (&[Name::QDown, Name::KvDown], None),
            Mixer::Mla(_) => (&[Name::Q, Name::KvDown], None),
        };
        for (name, (part, bias)) in names.iter().zip(biased(plan.qkv)) {
            let pairs = pairs.filter(|_| matches!(name, Name::Q | Name::K));
            self.projection(*name, i, (part, bias), pairs)?;
        }
        if let (Mixer::Mla(mla), Some(latent)) = (&layer.mixer, plan.latent) {
            for projection in latent.q_up.map(biased).into_iter().flatten() {
                self.projection(Name::QUp, i, projection, None)?;
            }
            self.heads(i, mla, latent.k_up, latent.v_up)?;
        }
        self.only(Name::O, i, plan.out)?;
        if let Some(NormPlan { weights, rows, .. }) = plan.sinks {
            self.vector(self.naming.weight(Name::Sinks, i), Source::plain(weights, rows));
        }
        self.norm(Name::QNorm, i, plan.q_norm, pairs);
        self.norm(Name::KNorm, i, plan.k_norm, pairs);
        self.norm(Name::AttentionPostNorm, i, plan.attention_post_norm, None);
        self.norm(Name::MlpNorm, i, plan.mlp_norm, None);
        match plan.mlp {
            MlpPlan::Two(two) if matches!(layer.mlp, Mlp::Plain(_)) => {
                self.only(Name::Up, i, two.up)?;
                self.only(Name::Down, i, two.down)?;
            }
            MlpPlan::Two(two) => {
                let [gate, up] = gate_and_up(two.up);
                self.projection(Name::Gate, i, gate, None)?;
                self.projection(Name::Up, i, up, None)?;
                self.only(Name::Down, i, two.down)?;
            }
            MlpPlan::Moe(moe) => self.moe(i, *moe)?,
        }
        self.norm(Name::MlpPostNorm, i, plan.mlp_post_norm, None);
        Ok(())
    }

    /// Keys and values of the heads of latent attention.
    fn heads(
        &mut self,
        layer: usize,
        mla: &Mla,
        k_up: Part<'a>,
        v_up: Part<'a>,
    ) -> Result<(), ModelError> {
        let Mla { n_heads, kv_rank, nope_dim, value_dim, .. } = *mla;
        if !self.naming.stored.is_kv_up_split {
            return self.projection(Name::KvUp, layer, (Part::whole(k_up.view), None), None);
        }
        let mut stack = |name, part, shape: [usize; 2]| {
            let shape = vec![n_heads, shape[0], shape[1]];
            self.matrix(self.naming.weight(name, layer), vec![part], shape, None)
        };
        stack(Name::KUp, k_up, [kv_rank, nope_dim])?;
        stack(Name::VUp, v_up, [value_dim, kv_rank])
    }

    fn moe(&mut self, layer: usize, plan: MoePlan<'a>) -> Result<(), ModelError> {
        self.only(Name::Router, layer, plan.router)?;
        if let Some(NormPlan { weights, rows, .. }) = plan.correction {
            let name = self.naming.bias(Name::RouterCorrection, layer);
            self.vector(name, Source::plain(weights, rows));
        }
        let names = [Name::ExpertGate, Name::ExpertUp, Name::ExpertDown];
        let mut stacks = names.map(|_| (Vec::new(), Vec::new()));
        for expert in plan.experts {
            let [gate, up] = gate_and_up(expert.up);
            let down = biased(expert.down);
            for ((parts, biases), (part, bias)) in
                stacks.iter_mut().zip([gate, up].into_iter().chain(down))
            {
                parts.push(part);
                biases.extend(bias);
            }
        }
        for (name, (parts, biases)) in names.into_iter().zip(stacks) {
            let shape = [&[parts.len()], parts[0].shape.as_slice()].concat();
            self.matrix(self.naming.weight(name, layer), parts, shape, None)?;
            if let Some(bias) = biases.first() {
                let shape = vec![biases.len(), bias.n()];
                self.matrix(self.naming.bias(name, layer), biases, shape, None)?;
            }
        }
        if let Some(shared) = plan.shared {
            let [gate, up] = gate_and_up(shared.up);
            self.projection(Name::SharedGate, layer, gate, None)?;
            self.projection(Name::SharedUp, layer, up, None)?;
            self.only(Name::SharedDown, layer, shared.down)?;
        }
        for (part, _) in plan.switch.map(biased).into_iter().flatten() {
            // One row, which files have as a vector.
            let (name, k) = (self.naming.weight(Name::SharedSwitch, layer), part.shape[1]);
            self.matrix(name, vec![part], vec![k], None)?;
        }
        Ok(())
    }

    /// A projection that stands alone.
    fn only(&mut self, name: Name, layer: usize, plan: LinearPlan<'a>) -> Result<(), ModelError> {
        biased(plan).try_for_each(|projection| self.projection(name, layer, projection, None))
    }

    fn projection(
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

    fn matrix(
        &mut self,
        gguf_name: String,
        parts: Vec<Part<'a>>,
        shape: Vec<usize>,
        pairs: Option<[usize; 2]>,
    ) -> Result<(), ModelError> {
        let first = parts[0].dtype();
        // What is of several types is exact in f32.
        let is_uniform = parts.iter().all(|part| part.dtype() == first);
        let stored = if is_uniform { first } else { DType::F32 };
        let dtype = self.formats.stored_as(&gguf_name, stored, &shape, false)?;
        let source = Source::Matrix { parts, pairs };
        self.items.push(Item { gguf_name, dtype, shape, source });
        Ok(())
    }

    fn norm(
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

    fn vector(&mut self, gguf_name: String, source: Source<'a>) {
        let Source::Vector { rows, .. } = &source else { return };
        self.items.push(Item { gguf_name, dtype: DType::F32, shape: vec![rows.n], source });
    }
}

/// Each projection with its bias.
fn biased<'a>(plan: LinearPlan<'a>) -> impl Iterator<Item = Biased<'a>> {
    let mut biases = plan.biases.into_iter();
    plan.parts.into_iter().map(move |part| (part, biases.next()))
}

/// Gate and up, which may be one projection.
fn gate_and_up(mut plan: LinearPlan<'_>) -> [Biased<'_>; 2] {
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
        let rows = Rows { n, n_stored: 2 * n, first, run: n, stride: n, pairs: None };
        let Part { view, is_transposed, turned, slice, factors, .. } = *part;
        Part { view, shape, rows, is_transposed, turned, quantized: None, slice, factors }
    })
}
