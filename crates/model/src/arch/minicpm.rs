//! MiniCPM (Hu et al., 2024): Llama with a scale on embeddings, one on what layers add, and one on
//! what the head reads.

use super::{Arch, ArchSpec, Preset, Stored, llama};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["MiniCPMForCausalLM"],
    model_types: &["minicpm"],
    gguf_names: &["minicpm"],
    defaults: &[("tie_word_embeddings", Preset::Flag(true))],
    gguf: Stored { is_in_pairs: true, ..Stored::GGUF },
    spec,
    written_as: Some("minicpm"),
    ..Arch::PLAIN
};

pub(super) fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let experts = cfg.field("num_experts");
    if experts.value().is_some_and(|n| n.as_u64() != Some(0)) {
        return Err(experts.error("0: the models with experts are another family"));
    }
    let mut spec = llama::spec(cfg)?;
    let number = |name: &str, default: f64| cfg.number(name, default, [1e-6, 1e6]);
    let hidden_size = cfg.hidden_size as f64;
    let n_layers = cfg.num_hidden_layers as f64;
    let depth = number("scale_depth", n_layers.sqrt())? / n_layers.sqrt() as f32;
    let head = number("dim_model_base", hidden_size)? / hidden_size as f32;
    // GGUF files say the same as three multipliers.
    spec.embedding_scale = number("embedding_multiplier", number("scale_emb", 1.0)?.into())?;
    spec.logit_scale = number("logits_scaling", (1.0 / head).into())?.recip();
    let residual = number("residual_multiplier", depth.into())?;
    for layer in &mut spec.layers {
        layer.wiring.scale = residual;
    }
    Ok(spec)
}
