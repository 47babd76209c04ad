//! Every tensor that a spec asks for, looked up and checked before anything is packed.

use std::borrow::Cow;
use std::fmt::Write as _;

use pelton_quant::checkpoint::QuantizedTensor;
use pelton_quant::{QuantError, for_dtype, supported_names};
use pelton_tensor::TensorView;

use crate::arch::{ArchSpec, GgufRows, Gqa, LayerSpec};
use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::files::names::{Naming, Part as Name};

/// All tensors of a model.
pub(super) struct Plan<'a> {
    pub(super) embedding: Part<'a>,
    pub(super) layers: Vec<LayerPlan<'a>>,
    pub(super) final_norm: NormPlan<'a>,
    pub(super) head: Option<Part<'a>>,
}

/// All tensors of a layer.
pub(super) struct LayerPlan<'a> {
    pub(super) attention_norm: NormPlan<'a>,
    pub(super) qkv: LinearPlan<'a>,
    pub(super) q_norm: Option<NormPlan<'a>>,
    pub(super) k_norm: Option<NormPlan<'a>>,
    pub(super) out: LinearPlan<'a>,
    pub(super) mlp_norm: NormPlan<'a>,
    pub(super) gate_up: LinearPlan<'a>,
    pub(super) down: LinearPlan<'a>,
}

/// A norm's weight.
pub(super) struct NormPlan<'a> {
    pub(super) view: TensorView<'a>,
}

/// Matrices stacked by rows, with their biases.
pub(super) struct LinearPlan<'a> {
    pub(super) parts: Vec<Part<'a>>,
    /// As many as parts, or none.
    pub(super) biases: Vec<Part<'a>>,
    pub(super) k: usize,
}

/// One tensor, whose rows may have to be put in another order while loading.
pub(super) struct Part<'a> {
    view: TensorView<'a>,
    /// Heads whose rows are interleaved in the file.
    n_interleaved_heads: Option<usize>,
    /// The whole matrix, where `view` is but the first of several tensors that make it.
    quantized: Option<QuantizedTensor<'a>>,
}

impl<'a> Part<'a> {
    /// The matrix of several tensors, where it is one.
    pub(super) fn quantized(&self) -> Option<&QuantizedTensor<'a>> {
        self.quantized.as_ref()
    }

    /// The order of its inputs, where that is not their own.
    pub(super) fn order(&self) -> Option<&[u32]> {
        self.quantized.as_ref().and_then(QuantizedTensor::order)
    }

    /// Rows.
    pub(super) fn n(&self) -> usize {
        self.quantized.as_ref().map_or(self.view.shape[0], |matrix| matrix.shape()[0])
    }

    /// Elements of a row.
    pub(super) fn k(&self) -> usize {
        let own = self.view.shape.get(1).copied().unwrap_or(1);
        self.quantized.as_ref().map_or(own, |matrix| matrix.shape()[1])
    }

    /// The bytes of its tensors as they lie in the file.
    pub(super) fn stored(&self) -> impl Iterator<Item = &'a [u8]> {
        let own = std::slice::from_ref(&self.view);
        self.quantized.as_ref().map_or(own, |matrix| matrix.views()).iter().map(|view| view.data)
    }

    /// Whether this and `other` can become one matrix.
    fn stacks_on(&self, other: &Self) -> bool {
        match (&self.quantized, &other.quantized) {
            (None, None) => self.view.dtype == other.view.dtype,
            (Some(own), Some(other)) => own.order() == other.order(),
            _ => false,
        }
    }

    /// Whether its product is added to that of an earlier part: another block of the same inputs'
    /// matrix.
    pub(super) fn adds(&self) -> bool {
        let columns = self.quantized.as_ref().and_then(QuantizedTensor::columns);
        columns.is_some_and(|columns| columns.start > 0)
    }

    /// The blocks of inputs that it is packed in, or the part itself.
    fn split(self) -> Vec<Self> {
        let Self { view, n_interleaved_heads, quantized } = self;
        let part = |quantized| Self { view, n_interleaved_heads, quantized };
        match quantized {
            None => vec![part(None)],
            Some(matrix) => matrix.split().into_iter().map(|m| part(Some(m))).collect(),
        }
    }

    fn n_bytes(&self) -> u64 {
        self.stored().map(|data| data.len() as u64).sum()
    }

    /// The tensor's bytes with its rows in the order of the decoder.
    pub(super) fn ordered(&self) -> Cow<'a, [u8]> {
        match self.n_interleaved_heads {
            None => Cow::Borrowed(self.view.data),
            Some(n_heads) => Cow::Owned(deinterleave(self.view.data, self.view.shape[0], n_heads)),
        }
    }

    /// The tensor with the bytes of [`ordered`](Self::ordered).
    pub(super) fn with_data<'s>(&'s self, data: &'s [u8]) -> TensorView<'s> {
        TensorView { data, ..self.view }
    }
}

impl<'a> LinearPlan<'a> {
    /// Rows of all parts.
    pub(super) fn n(&self) -> usize {
        self.parts.iter().filter(|part| !part.adds()).map(Part::n).sum()
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
    for Part { view, n_interleaved_heads, quantized } in parts {
        let separator = if text.is_empty() { "" } else { " + " };
        let _ = write!(text, "{separator}{} {} {:?}", view.name, view.dtype.name(), view.shape);
        if let Some(n_heads) = n_interleaved_heads {
            let _ = write!(text, " {n_heads} heads");
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
        let is_interleaved =
            naming == Naming::Gguf && files.arch().gguf_rows == GgufRows::Interleaved;
        let lookup = Lookup { files, naming, is_interleaved };
        let (hidden, vocab) = (spec.hidden_size, spec.vocab_size);
        let table = |name| {
            // Who looks up rows or picks tokens does not reorder inputs.
            let mut part = lookup.matrix(name, 0, [vocab, hidden])?;
            part.quantized = part.quantized.map(QuantizedTensor::in_own_order);
            Ok::<_, ModelError>(part)
        };
        Ok(Self {
            embedding: table(Name::Embedding)?,
            layers: spec
                .layers
                .iter()
                .enumerate()
                .map(|(i, layer)| lookup.layer(i, layer, hidden))
                .collect::<Result<_, _>>()?,
            final_norm: lookup.norm(Name::FinalNorm, 0, hidden)?,
            head: if spec.tied_embeddings { None } else { Some(table(Name::Head)?) },
        })
    }

    /// The parts of every matrix that is packed.
    pub(super) fn matrices(&self) -> Vec<&[Part<'a>]> {
        let layers = self.layers.iter();
        layers
            .flat_map(|layer| [&layer.qkv, &layer.out, &layer.gate_up, &layer.down])
            .flat_map(LinearPlan::runs)
            .chain([&self.embedding].into_iter().chain(&self.head).map(std::slice::from_ref))
            .collect()
    }

    /// Stored bytes of everything but biases.
    pub(super) fn n_bytes(&self) -> usize {
        self.sum(&Part::n_bytes, &|view| view.data.len() as u64) as usize
    }

    /// Elements of everything but biases.
    pub(super) fn n_elements(&self) -> u64 {
        self.sum(&|part| part.n() as u64 * part.k() as u64, &|view| view.n_elements() as u64)
    }

    fn sum(
        &self,
        matrix: &dyn Fn(&Part<'a>) -> u64,
        vector: &dyn Fn(&TensorView<'_>) -> u64,
    ) -> u64 {
        let linear = |plan: &LinearPlan<'a>| plan.parts.iter().map(matrix).sum::<u64>();
        let norm = |plan: &NormPlan<'_>| vector(&plan.view);
        let layers = self.layers.iter().map(|layer| {
            [&layer.qkv, &layer.out, &layer.gate_up, &layer.down].map(linear).iter().sum::<u64>()
                + [&layer.attention_norm, &layer.mlp_norm].map(norm).iter().sum::<u64>()
                + layer.q_norm.iter().chain(&layer.k_norm).map(norm).sum::<u64>()
        });
        matrix(&self.embedding)
            + layers.sum::<u64>()
            + norm(&self.final_norm)
            + self.head.as_ref().map_or(0, matrix)
    }
}

/// Finds tensors by name and checks them.
struct Lookup<'a> {
    files: &'a ModelFiles,
    naming: Naming,
    is_interleaved: bool,
}

/// Several projections of the same input.
struct Stack<'s> {
    layer: usize,
    /// Name, rows, and the number of heads where rows may be interleaved.
    parts: &'s [(Name, usize, Option<usize>)],
    k: usize,
    bias: bool,
}

impl<'a> Lookup<'a> {
    fn layer(
        &self,
        layer: usize,
        spec: &LayerSpec,
        hidden: usize,
    ) -> Result<LayerPlan<'a>, ModelError> {
        let gqa: &Gqa = spec.gqa();
        let mlp = spec.gated_mlp();
        let ffn = mlp.intermediate_size;
        let head_norm =
            |name| gqa.qk_norm.then(|| self.norm(name, layer, gqa.head_dim)).transpose();
        let stack = |parts, k, bias| self.linear(&Stack { layer, parts, k, bias });
        Ok(LayerPlan {
            attention_norm: self.norm(Name::AttentionNorm, layer, hidden)?,
            qkv: stack(
                &[
                    (Name::Q, gqa.q_width(), Some(gqa.n_heads)),
                    (Name::K, gqa.kv_width(), Some(gqa.n_kv_heads)),
                    (Name::V, gqa.kv_width(), None),
                ],
                hidden,
                gqa.qkv_bias,
            )?,
            q_norm: head_norm(Name::QNorm)?,
            k_norm: head_norm(Name::KNorm)?,
            out: stack(&[(Name::O, hidden, None)], gqa.q_width(), gqa.out_bias)?,
            mlp_norm: self.norm(Name::MlpNorm, layer, hidden)?,
            gate_up: stack(&[(Name::Gate, ffn, None), (Name::Up, ffn, None)], hidden, mlp.bias)?,
            down: stack(&[(Name::Down, hidden, None)], ffn, mlp.bias)?,
        })
    }

    fn linear(&self, stack: &Stack<'_>) -> Result<LinearPlan<'a>, ModelError> {
        let heads = |n_heads: Option<usize>| n_heads.filter(|_| self.is_interleaved);
        let mut plan = LinearPlan { parts: Vec::new(), biases: Vec::new(), k: stack.k };
        let mut split = Vec::new();
        for &(name, n, n_heads) in stack.parts {
            let part = self.matrix(name, stack.layer, [n, stack.k])?;
            split.push(Part { n_interleaved_heads: heads(n_heads), ..part }.split());
            if stack.bias {
                let view = self.find(&self.naming.bias(name, stack.layer), &[n])?;
                let n_interleaved_heads = heads(n_heads);
                plan.biases.push(Part { view, n_interleaved_heads, quantized: None });
            }
        }
        plan.parts = stacked(split);
        Ok(plan)
    }

    /// A matrix of one tensor, or of several where the checkpoint is quantized.
    fn matrix(&self, name: Name, layer: usize, shape: [usize; 2]) -> Result<Part<'a>, ModelError> {
        if let Some(scheme) = self.files.scheme() {
            let tensors = self.files.tensors();
            let weight = self.naming.weight(name, layer);
            let module = weight.trim_end_matches(".weight");
            let found = scheme.find(tensors, module, shape).map_err(|source| {
                ModelError::Format { file: tensors.origin().to_owned(), source }
            })?;
            if let Some(matrix) = found {
                let view = matrix.views()[0];
                return Ok(Part { view, n_interleaved_heads: None, quantized: Some(matrix) });
            }
        }
        let view = self.weight(name, layer, &shape)?;
        Ok(Part { view, n_interleaved_heads: None, quantized: None })
    }

    fn norm(&self, name: Name, layer: usize, width: usize) -> Result<NormPlan<'a>, ModelError> {
        Ok(NormPlan { view: self.weight(name, layer, &[width])? })
    }

    fn weight(
        &self,
        name: Name,
        layer: usize,
        shape: &[usize],
    ) -> Result<TensorView<'a>, ModelError> {
        self.find(&self.naming.weight(name, layer), shape)
    }

    fn find(&self, name: &str, shape: &[usize]) -> Result<TensorView<'a>, ModelError> {
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
        if for_dtype(view.dtype).is_none() {
            let source = QuantError::Unsupported {
                tensor: name.to_owned(),
                dtype: view.dtype,
                supported: supported_names(),
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

/// Rows of each head from pairs `(0, d/2), (1, d/2 + 1), ...` to the order `0, 1, ..., d - 1`.
fn deinterleave(data: &[u8], n_rows: usize, n_heads: usize) -> Vec<u8> {
    reorder_rows(
        data,
        n_rows,
        n_rows / n_heads,
        |i, half| {
            if i < half { 2 * i } else { 2 * (i - half) + 1 }
        },
    )
}

/// The inverse of the loader's: rows of each head to pairs, as GGUF files of some families store
/// them.
pub(crate) fn interleave(data: &[u8], n_rows: usize, n_heads: usize) -> Vec<u8> {
    reorder_rows(data, n_rows, n_rows / n_heads, |i, half| i / 2 + half * (i % 2))
}

/// Row `i` of each head of the result is row `from(i, head_dim / 2)` of the same head.
fn reorder_rows(
    data: &[u8],
    n_rows: usize,
    head_dim: usize,
    from: impl Fn(usize, usize) -> usize,
) -> Vec<u8> {
    let row_bytes = data.len() / n_rows;
    let mut out = Vec::with_capacity(data.len());
    for row in 0..n_rows {
        let (head, i) = (row / head_dim, row % head_dim);
        let source = head * head_dim + from(i, head_dim / 2);
        out.extend_from_slice(&data[source * row_bytes..][..row_bytes]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deinterleaving_undoes_interleaving() {
        let rows: Vec<u8> = (0..24).collect();
        let stored = interleave(&rows, 12, 2);
        assert_eq!(&stored[..6], &[0, 1, 6, 7, 2, 3]);
        assert_eq!(deinterleave(&stored, 12, 2), rows);
    }
}
