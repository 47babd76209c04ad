//! Command R (Cohere, 2024): layer norms without bias, both mixers beside each other, a scale on
//! the logits, rotation in pairs of neighbours, and in the large model normed q and k.

use super::{Arch, ArchSpec, NormKind, Preset, QkNorm, Residual, Stored, llama};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["CohereForCausalLM"],
    model_types: &["cohere"],
    gguf_names: &["command-r"],
    spellings: &[("rms_norm_eps", "layer_norm_eps")],
    defaults: DEFAULTS,
    hf: Stored { is_in_pairs: true, ..Stored::HF },
    gguf: Stored { is_in_pairs: true, ..Stored::GGUF },
    spec,
    written_as: Some("command-r"),
    ..Arch::PLAIN
};

pub(super) const DEFAULTS: &[(&str, Preset)] = &[
    ("tie_word_embeddings", Preset::Flag(true)),
    ("rms_norm_eps", Preset::Number(1e-5)),
    ("logit_scale", Preset::Number(0.0625)),
];

pub(super) fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = llama::spec(cfg)?;
    spec.norm = NormKind::Layer { weight: true, bias: false };
    spec.logit_scale = cfg.number("logit_scale", 0.0625, [1e-6, 1e6])?;
    let has_norm = cfg.flag("use_qk_norm", false)?;
    for layer in &mut spec.layers {
        layer.wiring.residual = Residual::ParallelOneNorm;
        layer.gqa_mut().qk_norm = has_norm.then_some(QkNorm::HeadLayer);
    }
    Ok(spec)
}
