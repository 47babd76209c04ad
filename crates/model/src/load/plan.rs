//! Every tensor that a spec asks for, looked up and checked before anything is packed.

mod encoder;
mod experts;
mod inputs;
mod layer;
mod linear;
mod lookup;
mod norms;
mod streams;

use std::fmt::Write as _;

use pelton_quant::Compute;
use pelton_quant::checkpoint::QuantizedTensor;
use pelton_tensor::TensorView;

pub(crate) use super::part::{Part, Rows};
use crate::arch::{ArchSpec, Mixer, Mlp, Part as Name};
use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::layer::{Planned, PlannedTensors};
pub(crate) use encoder::EncoderPlan;
pub(crate) use inputs::{InputPlan, InputsPlan, TailPlan};
pub(crate) use linear::Projection;
pub(crate) use lookup::Lookup;
pub(crate) use streams::{LayerStreamsPlan, StreamsPlan};

/// All tensors of a model.
pub(crate) struct Plan<'a> {
    pub(crate) embedding: Part<'a>,
    pub(crate) positions: Option<Part<'a>>,
    pub(crate) token_types: Option<Part<'a>>,
    pub(crate) embedding_norm: Option<NormPlan<'a>>,
    pub(crate) inputs: Option<InputsPlan<'a>>,
    pub(crate) streams: Option<StreamsPlan<'a>>,
    pub(crate) layers: Vec<LayerPlan<'a>>,
    pub(crate) encoder: Option<EncoderPlan<'a>>,
    pub(crate) final_norm: Option<NormPlan<'a>>,
    pub(crate) head: Option<Part<'a>>,
    pub(crate) head_bias: Option<NormPlan<'a>>,
}

/// All tensors of a layer.
pub(crate) struct LayerPlan<'a> {
    pub(crate) attention_norm: Option<NormPlan<'a>>,
    pub(crate) attention: Mixer<Planned<'a>>,
    pub(crate) attention_post_norm: Option<NormPlan<'a>>,
    pub(crate) mlp_norm: Option<NormPlan<'a>>,
    pub(crate) mlp: Mlp<Planned<'a>>,
    pub(crate) mlp_post_norm: Option<NormPlan<'a>>,
    pub(crate) tail: TailPlan<'a>,
}

/// A norm's weight and bias: vectors that stay in f32.
pub(crate) struct NormPlan<'a> {
    /// The stored weights: one tensor, or one for each head; empty where the norm has no weight.
    pub(crate) weights: Vec<TensorView<'a>>,
    pub(crate) bias: Option<TensorView<'a>>,
    /// The elements to take, in the order of the decoder.
    pub(crate) rows: Rows,
    /// Added to each weight.
    pub(crate) offset: f32,
}

/// Matrices stacked by rows, with their biases.
pub(crate) struct LinearPlan<'a> {
    pub(crate) parts: Vec<Part<'a>>,
    /// As many as parts, or none.
    pub(crate) biases: Vec<Part<'a>>,
    pub(crate) k: usize,
    /// Factors of each projection; none where all are 1.
    pub(crate) factors: Vec<Factors>,
    /// Whether it is computed in f32 whatever the arithmetic of the model is.
    pub(crate) is_exact: bool,
}

/// Factors of the outputs of one projection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Factors {
    /// Outputs.
    pub(crate) n: usize,
    /// Factor of products.
    pub(crate) product: f32,
    /// Factor of biases.
    pub(crate) bias: f32,
}

impl<'a> NormPlan<'a> {
    /// Every stored tensor.
    pub(super) fn views(&self) -> impl Iterator<Item = &TensorView<'a>> {
        self.weights.iter().chain(&self.bias)
    }
}

impl<'a> LayerPlan<'a> {
    /// The tensors of both mixers, and of the end of the layer.
    fn mixers(&self) -> [PlannedTensors<'_, 'a>; 3] {
        [self.attention.tensors(), self.mlp.tensors(), self.tail.tensors()]
    }

    fn norms(&self) -> impl Iterator<Item = &NormPlan<'a>> {
        let norms =
            [&self.attention_norm, &self.attention_post_norm, &self.mlp_norm, &self.mlp_post_norm];
        norms.into_iter().flatten().chain(self.tail.input.as_ref().map(|input| &input.norm))
    }
}

impl<'a> LinearPlan<'a> {
    /// The arithmetic of its weights where that of the model is `asked`.
    pub(super) fn compute(&self, asked: Compute) -> Compute {
        if self.is_exact { Compute::F32 } else { asked }
    }

    /// Neighbours of one type and order of inputs, which become one matrix.
    pub(super) fn runs(&self) -> impl Iterator<Item = &[Part<'a>]> {
        self.parts.chunk_by(|a, b| b.stacks_on(a))
    }
}

/// The name of a packed matrix in a cache: the tensors that it is made of, and how.
///
/// Two recipes are equal only if packing would read the same tensors in the same way:
/// `blk.0.attn_q.weight q8_0 [64, 64] 4 heads + blk.0.attn_k.weight ...`.
pub(super) fn recipe(parts: &[Part<'_>]) -> String {
    let mut text = String::new();
    for Part { view, rows, is_transposed, turned, quantized, slice, rounded, .. } in parts {
        let separator = if text.is_empty() { "" } else { " + " };
        let _ = write!(text, "{separator}{} {} {:?}", view.name, view.dtype.name(), view.shape);
        let _ = write!(text, "{rows}{}", if *is_transposed { " transposed" } else { "" });
        if let Some(turned) = turned {
            let _ = write!(text, "{turned}");
        }
        if let Some(slice) = slice {
            let _ = write!(text, " of expert {slice}");
        }
        if let Some(rounded) = rounded {
            let _ = write!(text, "{rounded}");
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
    /// Looks up the tensors as they are stored.
    pub(crate) fn new(files: &'a ModelFiles, spec: &ArchSpec) -> Result<Self, ModelError> {
        Self::padded(files, spec, 1)
    }

    /// Looks up the tensors, for a device that wants the rows of each head of a matrix of heads in
    /// multiples of `head_rows`.
    pub(super) fn padded(
        files: &'a ModelFiles,
        spec: &ArchSpec,
        head_rows: usize,
    ) -> Result<Self, ModelError> {
        let lookup = Lookup::new(files, spec, head_rows);
        let (hidden, vocab) = (spec.hidden_size, spec.vocab_size);
        let table = |name, n| {
            // Looking up a row and picking a token read inputs in their own order.
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
            inputs: spec.layer_inputs.map(|inputs| lookup.inputs(inputs)).transpose()?,
            streams: spec.streams.map(|streams| lookup.streams(streams)).transpose()?,
            layers: spec
                .layers
                .iter()
                .enumerate()
                .map(|(i, layer)| lookup.layer(i, layer))
                .collect::<Result<_, _>>()?,
            encoder: spec.encoder.as_ref().map(|encoder| lookup.encoder(encoder)).transpose()?,
            final_norm: lookup.optional_norm(spec.ends.final_norm, Name::FinalNorm, 0)?,
            head: (!spec.tied_embeddings).then(|| table(Name::Head, vocab)).transpose()?,
            head_bias: spec.head_bias.then(|| lookup.head_bias(vocab)).transpose()?,
        })
    }

    /// The parts of every matrix that is packed.
    pub(crate) fn matrices(&self) -> Vec<&[Part<'a>]> {
        self.runs(Compute::Auto).into_iter().map(|(run, _)| run).collect()
    }

    /// The parts of every matrix that is packed, and the arithmetic of its weights where that of
    /// the model is `asked`.
    pub(crate) fn runs(&self, asked: Compute) -> Vec<(&[Part<'a>], Compute)> {
        let of_encoder = self.encoder.iter().flat_map(|encoder| &encoder.positions);
        let alone = [&self.embedding].into_iter().chain(&self.positions).chain(&self.token_types);
        let alone = alone.chain(of_encoder);
        let by_head = self.mixers().flat_map(|mixer| mixer.by_head);
        let inputs = self.inputs.as_ref();
        let alone = by_head.chain(alone).chain(&self.head).chain(inputs.map(|own| &own.table));
        (self.mixers().flat_map(|mixer| mixer.linears))
            .chain(inputs.map(|own| &own.projection))
            .chain(self.streams.iter().flat_map(StreamsPlan::linears))
            .flat_map(|linear| linear.runs().map(move |run| (run, linear.compute(asked))))
            .chain(alone.map(|part| (std::slice::from_ref(part), asked)))
            .collect()
    }

    /// The tensors of the mixers of all layers.
    fn mixers(&self) -> impl Iterator<Item = PlannedTensors<'_, 'a>> {
        let of_encoder = self.encoder.iter().flat_map(|encoder| &encoder.layers);
        self.layers.iter().chain(of_encoder).flat_map(LayerPlan::mixers)
    }

    /// Norms of the kind that the spec names.
    pub(super) fn norms(&self) -> impl Iterator<Item = &NormPlan<'a>> {
        let encoder = self.encoder.as_ref();
        let of_encoder = encoder.into_iter().flat_map(EncoderPlan::norms);
        let layers = self.layers.iter().flat_map(LayerPlan::norms).chain(of_encoder);
        let of_inputs = self.inputs.as_ref().map(|inputs| &inputs.norm);
        layers.chain(&self.embedding_norm).chain(&self.final_norm).chain(of_inputs)
    }

    /// Vectors that are read like a norm's weight and have no bias.
    pub(super) fn vectors(&self) -> impl Iterator<Item = &NormPlan<'a>> {
        self.mixers().flat_map(|mixer| mixer.vectors).chain(&self.head_bias)
    }

    /// Elements of vectors that are in no file.
    pub(super) fn n_made(&self) -> usize {
        self.mixers().map(|mixer| mixer.n_made).sum()
    }

    /// Biases of projections.
    pub(super) fn biases(&self) -> impl Iterator<Item = &Part<'a>> {
        self.mixers().flat_map(|mixer| mixer.linears).flat_map(|linear| &linear.biases)
    }

    /// Stored bytes of everything that is read.
    pub(super) fn n_bytes(&self) -> u64 {
        let parts = self.matrices().into_iter().flatten().chain(self.biases());
        let views = self.norms().chain(self.vectors()).flat_map(NormPlan::views);
        parts.map(|part| part.n_bytes() as u64).sum::<u64>()
            + views.map(|view| view.data.len() as u64).sum::<u64>()
    }
}
