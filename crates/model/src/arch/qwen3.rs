//! Qwen3 (Yang et al., 2025): Llama with RMS-normalised q and k heads.

use super::{Arch, ArchSpec, QkNorm, llama, qwen2};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["Qwen3ForCausalLM"],
    model_types: &["qwen3"],
    gguf_names: &["qwen3"],
    written_as: Some("qwen3"),
    spec,
    ..Arch::PLAIN
};

pub(super) fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = llama::spec(cfg)?;
    for layer in &mut spec.layers {
        let gqa = layer.gqa_mut();
        gqa.qk_norm = Some(QkNorm::HeadRms);
    }
    qwen2::set_windows(&mut spec, cfg);
    Ok(spec)
}
