//! Facts about a model that need no loading.

use std::collections::BTreeMap;

use pelton_base::limits::BLOCK_TOKENS;
use pelton_quant::{Compute, RoundTo};
use pelton_tensor::{ActivationGroup, DType, KvDtype, StateDtype, TensorSource};

use crate::arch::{ArchSpec, LayerSpec, Mixer};
use crate::device::Device;
use crate::device::cpu::CpuDevice;
use crate::error::ModelError;
use crate::files::{ModelFiles, ModelKind};
use crate::kv::KvFootprint;
use crate::load::{self, QuantizedTotals, quantized_totals, weight_bytes};
use crate::state::StateShape;

/// The encoder of an encoder-decoder model.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct InspectedEncoder {
    /// Layers.
    pub n_layers: usize,
    /// Longest prompt that it reads, in tokens.
    pub max_source: usize,
    /// Tokens that the decoder begins with.
    pub first_tokens: Vec<pelton_base::TokenId>,
}

/// Facts about a model, for people and for tools.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Inspection {
    /// Kind of files.
    pub kind: ModelKind,
    /// Folder or file.
    pub path: String,
    /// Name of the architecture.
    pub architecture: String,
    /// Whether tokens can be generated; if not, the model is for vectors of texts.
    pub generates: bool,
    /// Elements of all tensors in the files; of quantized matrices, their weights.
    pub n_parameters: u64,
    /// Parameters that one token goes through: all but the experts that are not chosen.
    pub n_active_parameters: u64,
    /// Bytes of all tensors in the files.
    pub n_bytes: u64,
    /// Bytes of all weights in memory, once packed.
    pub weight_bytes: u64,
    /// The format that weights are rounded to while they are loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rounded_to: Option<&'static str>,
    /// Tensors by stored type.
    pub tensors: BTreeMap<String, TensorTotals>,
    /// The other parts of a model of which only the text part is run; `None` where all of it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignored: Option<Ignored>,
    /// How a quantized checkpoint is read; `None` for others.
    pub quantization: Option<Quantization>,
    /// Decoder layers.
    pub n_layers: usize,
    /// The encoder that reads prompts, in encoder-decoder models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encoder: Option<InspectedEncoder>,
    /// Width of the residual stream, in elements.
    pub hidden_size: usize,
    /// Width of the hidden layer of the first perceptron, in elements.
    pub intermediate_size: usize,
    /// Query heads of the first layer.
    pub n_heads: usize,
    /// Key/value heads of the first layer.
    pub n_kv_heads: usize,
    /// Elements of a key per head of the first layer.
    pub head_dim: usize,
    /// Tokens in the vocabulary, padding included.
    pub vocab_size: usize,
    /// Longest context declared, in tokens.
    pub max_context: usize,
    /// Attention window in tokens of the layers that have one.
    pub window: Option<usize>,
    /// Layers with a window.
    pub n_window_layers: usize,
    /// Kind of rotary scaling; of the first where layers differ.
    pub rope_scaling: &'static str,
    /// Base of the rotary frequencies, 0 where nothing is rotated.
    pub rope_theta: f64,
    /// Whether the head shares the embedding table.
    pub tied_embeddings: bool,
    /// Tokens that end an answer.
    pub eos_tokens: Vec<pelton_base::TokenId>,
    /// Tokens that are never sampled.
    pub n_suppressed_tokens: usize,
    /// Tokens that are not sampled as the first of an answer.
    pub n_first_suppressed_tokens: usize,
    /// Activations that share a scale, by the layout of the quantized weights that they multiply.
    pub activation_groups: BTreeMap<&'static str, &'static str>,
    /// How keys and values are meant to be stored.
    pub kv_dtype: &'static str,
    /// Bytes of keys and values that one token of context takes.
    pub kv_bytes_per_token: usize,
    /// Layers that keep a state of a fixed size in place of keys and values.
    pub n_recurrent_layers: usize,
    /// How these states are meant to be stored.
    pub state_dtype: &'static str,
    /// Bytes of these states for one running sequence, the rows of an open chunk included.
    pub state_bytes: usize,
    /// Bytes of one state that the prefix cache keeps.
    pub snapshot_bytes: usize,
}

/// Tensors of one stored type.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct TensorTotals {
    /// How many.
    pub n_tensors: usize,
    /// Elements in all of them.
    pub n_elements: u64,
    /// Bytes of all of them.
    pub n_bytes: u64,
}

/// The parts of a model that are not its text part.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Ignored {
    /// Name of the architecture that the text part belongs to.
    pub wrapper: String,
    /// Tensors of the other parts, by the beginning of their names.
    pub parts: BTreeMap<String, TensorTotals>,
}

/// How a quantized checkpoint is read.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Quantization {
    /// Method, bits and groups.
    pub method: String,
    /// How the method rounds activations; this engine rounds them as
    /// [`Inspection::activation_groups`] says.
    pub method_activations: Option<String>,
    /// Quantized matrices by the layout that they are packed in, with packed bytes.
    pub layouts: BTreeMap<&'static str, TensorTotals>,
    /// Bytes of the tensors that hold the quantized matrices.
    pub n_stored_bytes: u64,
    /// Matrices whose inputs are put in another order (act-order).
    pub n_reordered: usize,
}

/// Looks at a model's files; `kv_dtype` is what its keys and values are to be stored in, and states are
/// to be stored in f32.
///
/// # Errors
///
/// Names the field that the architecture cannot work with, or the tensor that is missing, misshapen
/// or at odds with its neighbours.
pub fn inspect(files: &ModelFiles, kv_dtype: KvDtype) -> Result<Inspection, ModelError> {
    let spec = files.spec()?;
    let source = files.tensors();
    let mut tensors: BTreeMap<String, TensorTotals> = BTreeMap::new();
    for view in source.names().into_iter().filter_map(|name| source.get(name)) {
        let totals = tensors.entry(view.dtype.name().to_owned()).or_default();
        totals.n_tensors += 1;
        totals.n_elements += view.n_elements() as u64;
        totals.n_bytes += view.data.len() as u64;
    }
    let packed = source.names().into_iter().map(|name| packed_experts(source, name));
    let mut n_parameters = tensors.values().map(|t| t.n_elements).sum::<u64>();
    n_parameters = n_parameters.saturating_add_signed(packed.sum());
    let quantization = match files.scheme() {
        None => None,
        Some(scheme) => {
            let QuantizedTotals { layouts, n_stored_elements, n_stored_bytes, n_reordered } =
                quantized_totals::<CpuDevice>(files)?;
            n_parameters -= n_stored_elements;
            n_parameters += layouts.values().map(|totals| totals.n_elements).sum::<u64>();
            let (method, method_activations) = (scheme.words(), scheme.activations());
            Some(Quantization { method, method_activations, layouts, n_stored_bytes, n_reordered })
        }
    };
    let mixtures = spec.layers.iter().filter_map(|layer| layer.mlp.experts());
    let n_idle = mixtures.map(|moe| moe.n_idle_parameters(spec.hidden_size) as u64).sum::<u64>();
    let first = &spec.layers[0];
    let attention = spec.layers.iter().find(|layer| layer.mixer.kv_heads().is_some());
    let heads = attention.and_then(|layer| layer.mixer.kv_heads());
    let windows: Vec<usize> = spec.layers.iter().filter_map(|l| l.mixer.window()).collect();
    let kv = KvFootprint::new::<CpuDevice>(&spec, kv_dtype, BLOCK_TOKENS);
    let states = StateShape::of(&spec, StateDtype::F32);
    let state_bytes = CpuDevice::state_bytes(&states);
    let suppressed = files.suppressed_tokens()?;
    // Layers as the files have them, of which the spec may make several.
    let n_layers = match &spec.encoder {
        // A layer of a decoder is its self-attention and its attention to the source.
        Some(_) => spec.layers.len() / 2,
        None => files.config().num_hidden_layers,
    };
    let layers = spec.layers.chunks(spec.layers.len() / n_layers);
    let keeps_state =
        |layer: &&[LayerSpec]| layer.iter().any(|part| part.mixer.kept().state.is_some());
    let channel_mix = spec.layers.iter().find_map(|layer| match &layer.mixer {
        Mixer::ChannelMix(mix) => Some(mix.intermediate_size),
        _ => None,
    });
    let mut widths = spec.layers.iter().map(|layer| layer.mlp.intermediate_size());
    let first_width = || widths.find(|width| *width > 0).unwrap_or(0);
    Ok(Inspection {
        kind: files.kind(),
        path: files.path().display().to_string(),
        architecture: files.config().architecture.clone(),
        generates: spec.generates(),
        n_parameters,
        n_active_parameters: n_parameters.saturating_sub(n_idle),
        n_bytes: tensors.values().map(|t| t.n_bytes).sum(),
        weight_bytes: weight_bytes::<CpuDevice>(files, &spec, Compute::Auto)?,
        rounded_to: files.rounded_to().map(RoundTo::name),
        tensors,
        ignored: files.config().wrapper.as_ref().map(|wrapper| ignored(files, wrapper)),
        quantization,
        n_layers,
        encoder: spec.encoder.as_ref().map(|encoder| InspectedEncoder {
            n_layers: encoder.layers.len(),
            max_source: encoder.max_source,
            first_tokens: encoder.first_tokens.clone(),
        }),
        hidden_size: spec.hidden_size,
        intermediate_size: channel_mix.unwrap_or_else(first_width),
        n_heads: attention.unwrap_or(first).mixer.n_heads(),
        n_kv_heads: heads.map_or(0, |heads| heads.n),
        head_dim: heads.map_or(0, |heads| heads.key_dim),
        vocab_size: spec.vocab_size,
        max_context: spec.max_context,
        window: windows.first().copied(),
        n_window_layers: windows.len(),
        rope_scaling: spec.ropes.first().map_or("none", |rope| rope.scaling.name()),
        rope_theta: spec.ropes.first().map_or(0.0, |rope| rope.theta),
        tied_embeddings: spec.tied_embeddings,
        eos_tokens: spec.eos_tokens.clone(),
        n_suppressed_tokens: suppressed.always.len(),
        n_first_suppressed_tokens: suppressed.first.len(),
        activation_groups: load::layouts::<CpuDevice>(files)?
            .into_iter()
            .filter_map(|layout| Some((layout, group_of(layout, ActivationGroup::default())?)))
            .collect(),
        kv_dtype: kv_dtype.name(),
        kv_bytes_per_token: kv.token_bytes(&spec),
        n_recurrent_layers: layers.filter(keeps_state).count(),
        state_dtype: states.dtype.name(),
        state_bytes: state_bytes.lane,
        snapshot_bytes: state_bytes.snapshot,
    })
}

impl Inspection {
    /// The same where the states of recurrent layers of `spec`, which is that of the files, are to be
    /// stored in another type.
    #[must_use]
    pub fn with_states_in(self, spec: &ArchSpec, state_dtype: StateDtype) -> Self {
        let bytes = CpuDevice::state_bytes(&StateShape::of(spec, state_dtype));
        let (state_bytes, snapshot_bytes) = (bytes.lane, bytes.snapshot);
        Self { state_dtype: state_dtype.name(), state_bytes, snapshot_bytes, ..self }
    }

    /// The same where activations may share scales in larger groups.
    #[must_use]
    pub fn with_activations_in(mut self, group: ActivationGroup) -> Self {
        for (layout, name) in &mut self.activation_groups {
            *name = group_of(layout, group).unwrap_or(*name);
        }
        self
    }
}

fn group_of(layout: &str, group: ActivationGroup) -> Option<&'static str> {
    CpuDevice::activation_group(layout, group).map(ActivationGroup::name)
}

/// Weights of a stack of experts in MXFP4 beyond the elements of its two tensors, by the name of
/// the first: bytes of two codes each, and scales, which are no weights. Zero for other tensors.
fn packed_experts(source: &dyn TensorSource, name: &str) -> i64 {
    let view = |name: &str| source.get(name).filter(|view| view.dtype == DType::U8);
    let scales = name.strip_suffix("_blocks").map(|stem| format!("{stem}_scales"));
    let pair = scales.and_then(|scales| Some([view(name)?, view(&scales)?]));
    pair.map_or(0, |[blocks, scales]| blocks.n_elements() as i64 - scales.n_elements() as i64)
}

/// Tensors that do not belong to the text model.
fn ignored(files: &ModelFiles, wrapper: &str) -> Ignored {
    let (source, naming) = (files.tensors(), files.naming());
    let mut parts: BTreeMap<String, TensorTotals> = BTreeMap::new();
    for view in source.names().into_iter().filter_map(|name| source.get(name)) {
        if naming.owns(view.name) {
            continue;
        }
        let inner = view.name.strip_prefix("model.").unwrap_or(view.name);
        let part = inner.split('.').next().unwrap_or(inner);
        let totals = parts.entry(part.to_owned()).or_default();
        totals.n_tensors += 1;
        totals.n_elements += view.n_elements() as u64;
        totals.n_bytes += view.data.len() as u64;
    }
    Ignored { wrapper: wrapper.to_owned(), parts }
}
