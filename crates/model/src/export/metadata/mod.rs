//! The keys of an architecture, and its rotary divisors: what a reader makes the spec of again.
//!
//! Whether it does is not left to trust: see [`read_back`](super::read_back).

mod attention;
mod experts;
mod hybrid;
mod rope;
mod vectors;

pub(super) use rope::divisor_tensors;

use std::path::Path;

use pelton_quant::WeightFormat;
use pelton_tensor::{GgufArray, GgufValue, gguf_file_type};

use crate::arch::{Arch, ArchSpec, LayerSpec, Mixer, Mlp, NormKind, PARALLEL, Residual};
use crate::config::HfConfig;
use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::files::gguf::decimal;

/// Keys and their values, in the order of the file.
pub(super) struct Keys {
    arch: &'static str,
    pub(super) list: Vec<(String, GgufValue)>,
}

impl Keys {
    fn general(&mut self, key: &str, value: GgufValue) {
        self.list.push((format!("general.{key}"), value));
    }

    /// A key of the architecture.
    fn own(&mut self, key: &str, value: GgufValue) {
        self.list.push((format!("{}.{key}", self.arch), value));
    }

    fn count(&mut self, key: &str, n: usize) {
        self.own(key, GgufValue::U32(n as u32));
    }

    /// A number of each layer.
    fn counts(&mut self, key: &str, list: impl Iterator<Item = usize>) {
        self.own(key, GgufValue::Array(GgufArray::I32(list.map(|n| n as i32).collect())));
    }

    fn float(&mut self, key: &str, x: f32) {
        self.own(key, GgufValue::F32(x));
    }

    /// A number as f32, as readers expect, unless another would be read then.
    fn number(&mut self, key: &str, x: f64) {
        let is_meant = decimal(x as f32) == x;
        self.own(key, if is_meant { GgufValue::F32(x as f32) } else { GgufValue::F64(x) });
    }

    fn flag(&mut self, key: &str, flag: bool) {
        self.own(key, GgufValue::Bool(flag));
    }

    fn text(&mut self, key: &str, text: &str) {
        self.own(key, GgufValue::String(text.to_owned()));
    }
}

/// All keys but those of the tokenizer.
///
/// # Errors
///
/// When the folder makes vectors in a way that a GGUF file cannot say.
///
/// # Panics
///
/// When the family is not written.
pub(super) fn keys(
    files: &ModelFiles,
    spec: &ArchSpec,
    format: &dyn WeightFormat,
) -> Result<Keys, ModelError> {
    let arch = files.arch();
    let has_experts = spec.layers.iter().any(|layer| layer.mlp.experts().is_some());
    let with_experts = arch.written_with_experts.filter(|_| has_experts);
    let name = with_experts.or(arch.written_as).expect("invariant: a family that is written");
    let mut keys = Keys { arch: name, list: Vec::new() };
    keys.general("architecture", GgufValue::String(name.to_owned()));
    if let Some(name) = model_name(files.path()) {
        keys.general("name", GgufValue::String(name));
    }
    if let Some(file_type) = gguf_file_type(format.dtype()) {
        keys.general("file_type", GgufValue::U32(file_type));
    }
    keys.general("quantization_version", GgufValue::U32(2));

    keys.count("vocab_size", spec.vocab_size);
    keys.count("context_length", spec.max_context);
    keys.count("embedding_length", spec.hidden_size);
    // A layer of the file may be two here.
    let per_layer = if arch.gguf.halves.is_some() { 2 } else { 1 };
    keys.count("block_count", spec.layers.len() / per_layer);
    feed_forward(files.config(), spec, &mut keys);
    let is_kv_up_split = arch.gguf.is_kv_up_split;
    attention::write(spec, arch, &mut keys);
    let eps = match spec.norm {
        NormKind::Rms => "attention.layer_norm_rms_epsilon",
        NormKind::Layer { .. } => "attention.layer_norm_epsilon",
    };
    keys.float(eps, spec.norm_eps);
    experts::write(spec, is_kv_up_split, &mut keys);
    hybrid::write(files, spec, &mut keys);
    multipliers(spec, arch, &mut keys);
    if arch.has_default(PARALLEL) {
        let residual = spec.layers[0].wiring.residual;
        keys.flag(PARALLEL, residual == Residual::ParallelTwoNorms);
    }
    caps(arch, spec, &mut keys);
    rope::write(spec, &mut keys);
    vectors::write(files, spec, &mut keys)?;
    Ok(keys)
}

/// The name of a model at this place: that of its folder. In the cache of the hub, where folders are
/// called by commits, that of its repository: `models--OWNER--NAME/snapshots/COMMIT`.
fn model_name(path: &Path) -> Option<String> {
    let of = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let parent = path.parent().filter(|parent| parent.ends_with("snapshots"));
    let repository = parent.and_then(Path::parent).and_then(of);
    let repository = repository.as_deref().and_then(|name| name.strip_prefix("models--"));
    let name = repository.map(|name| name.rsplit("--").next().unwrap_or(name).to_owned());
    name.or_else(|| of(path))
}

/// The width of perceptrons; a list where some layers are perceptrons and others mixers alone.
fn feed_forward(config: &HfConfig, spec: &ArchSpec, keys: &mut Keys) {
    let widths = spec.layers.iter().map(|layer| match (&layer.mixer, &layer.mlp) {
        (Mixer::ChannelMix(mix), _) => mix.intermediate_size,
        (_, mlp) => mlp.intermediate_size(),
    });
    let widths: Vec<usize> = widths.collect();
    let is_dense = |layer: &&LayerSpec| matches!(layer.mlp, Mlp::Gated(_) | Mlp::Plain(_));
    let dense = spec.layers.iter().find(is_dense).map(|layer| layer.mlp.intermediate_size());
    let has_perceptron = |layer: &LayerSpec| !matches!(layer.mlp, Mlp::Absent(_));
    // Configs of Llama 4 say it by a name of its own, and by the usual one the width of experts.
    let unused = || config.width("intermediate_size_mlp").unwrap_or(config.intermediate_size);
    if spec.layers.iter().all(has_perceptron) {
        keys.count("feed_forward_length", dense.unwrap_or_else(unused));
    } else if spec.layers.iter().any(has_perceptron) {
        let n = dense.or_else(|| widths.iter().copied().max()).unwrap_or(0);
        keys.counts(
            "feed_forward_length",
            widths.iter().map(|width| if *width > 0 { n } else { 0 }),
        );
    } else {
        keys.count("feed_forward_length", widths.into_iter().max().unwrap_or(0));
    }
}

/// Factors of embeddings, of what layers add and of logits, where a model has any.
fn multipliers(spec: &ArchSpec, arch: &Arch, keys: &mut Keys) {
    // Command R multiplies logits by it; the other families divide them.
    if arch.has_default("logit_scale") {
        return keys.float("logit_scale", spec.logit_scale);
    }
    let residual = spec.layers[0].wiring.scale;
    let embedding = if arch.implies_embedding_scale { 1.0 } else { spec.embedding_scale };
    if [embedding, residual, spec.logit_scale] != [1.0; 3] {
        keys.float("embedding_scale", embedding);
        keys.float("residual_scale", residual);
        keys.float("logit_scale", divisor(1.0, spec.logit_scale));
    }
}

/// Caps of scores and of logits, of the families whose readers look for them.
fn caps(arch: &Arch, spec: &ArchSpec, keys: &mut Keys) {
    let scores = spec.layers.iter().find_map(|layer| match &layer.mixer {
        Mixer::Gqa(gqa) => gqa.softcap,
        _ => None,
    });
    for (key, cap) in
        [("attn_logit_softcapping", scores), ("final_logit_softcapping", spec.logit_softcap)]
    {
        if let Some(cap) = cap.filter(|_| arch.has_default(key)) {
            keys.float(key, cap);
        }
    }
}

/// The number by which `plain` becomes `scaled` once rounded; the nearest one where none does,
/// which is then a last bit off.
fn divisor(plain: f64, scaled: f32) -> f32 {
    let nearest = (plain / f64::from(scaled)) as f32;
    let around = [nearest, nearest.next_up(), nearest.next_down()];
    let gives_it = |by: &f32| (plain / f64::from(*by)) as f32 == scaled;
    around.into_iter().find(gives_it).unwrap_or(nearest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_of_the_hub_has_the_name_of_its_repository() {
        for (path, expected) in [
            ("/models/tiny", "tiny"),
            ("/hub/models--owner--Some-Name/snapshots/0123456789abcdef", "Some-Name"),
            ("/snapshots/tiny", "tiny"),
            ("/own/snapshots/tiny", "tiny"),
        ] {
            assert_eq!(model_name(Path::new(path)).as_deref(), Some(expected), "{path}");
        }
    }
}
