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
    spec,
    ..Arch::PLAIN
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = llama::spec(cfg)?;
    let moe = cfg.moe()?;
    spec.set_moe(&moe, |_| true);
    let clip = cfg.cap("clip_qkv")?;
    for layer in &mut spec.layers {
        let gqa = layer.gqa_mut();
        gqa.qk_norm = Some(QkNorm::WholeRms);
        gqa.clip = clip;
    }
    Ok(spec)
}
