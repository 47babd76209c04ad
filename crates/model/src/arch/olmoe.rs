//! OLMoE (Muennighoff et al., 2024): OLMo with 64 small experts, and RMS-normalised q and k.

use super::{Arch, ArchSpec, Preset, QkNorm, llama};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["OlmoeForCausalLM"],
    model_types: &["olmoe"],
    gguf_names: &["olmoe"],
    defaults: &[
        ("rms_norm_eps", Preset::Number(1e-5)),
        ("num_experts", Preset::Number(64.0)),
        ("num_experts_per_tok", Preset::Number(8.0)),
    ],
    written_as: Some("olmoe"),
    spec,
    ..Arch::PLAIN
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = llama::spec(cfg)?;
    let moe = cfg.moe()?;
    spec.set_moe(&moe, |_| true);
    // It would bound what the norms give, and no published model has it.
    if let Some(clip) = cfg.field("clip_qkv").non_null() {
        return Err(clip.error("null, all that is supported"));
    }
    for layer in &mut spec.layers {
        layer.gqa_mut().qk_norm = Some(QkNorm::WholeRms);
    }
    Ok(spec)
}
