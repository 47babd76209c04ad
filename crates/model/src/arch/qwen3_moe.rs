//! Qwen3-MoE (Yang et al., 2025): Qwen3 with experts in most layers.

use super::{Arch, ArchSpec, Stored, qwen2_moe, qwen3};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["Qwen3MoeForCausalLM"],
    model_types: &["qwen3_moe"],
    gguf_names: &["qwen3moe"],
    defaults: qwen2_moe::DEFAULTS,
    hf: Stored::HF,
    written_as: Some("qwen3moe"),
    spec,
    ..Arch::PLAIN
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = qwen3::spec(cfg)?;
    let moe = cfg.moe()?;
    let is_sparse = qwen2_moe::sparse_layers(cfg)?;
    spec.set_moe(&moe, |layer| is_sparse[layer]);
    Ok(spec)
}
