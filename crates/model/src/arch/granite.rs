//! Granite 3 (Granite Team, 2024): Llama with four multipliers.

use super::{Arch, ArchSpec, Stored, llama};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["GraniteForCausalLM"],
    model_types: &["granite"],
    gguf_names: &["granite"],
    gguf: Stored { is_in_pairs: true, ..Stored::GGUF },
    spec,
    written_as: Some("granite"),
    ..Arch::PLAIN
};

pub(super) fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = llama::spec(cfg)?;
    let multiplier = |name: &str| cfg.number(name, 1.0, [1e-6, 1e6]);
    spec.embedding_scale = multiplier("embedding_multiplier")?;
    spec.logit_scale = multiplier("logits_scaling")?.recip();
    let attention = multiplier("attention_multiplier")?;
    let residual = multiplier("residual_multiplier")?;
    for layer in &mut spec.layers {
        layer.gqa_mut().scale = attention;
        layer.wiring.scale = residual;
    }
    Ok(spec)
}
