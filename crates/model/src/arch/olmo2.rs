//! OLMo 2 (OLMo Team, 2024): Llama with norms after its mixers alone, and RMS-normalised q and k.

use super::{Arch, ArchSpec, Part, Preset, QkNorm, Stored, Wiring, llama};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["Olmo2ForCausalLM"],
    model_types: &["olmo2"],
    gguf_names: &["olmo2"],
    defaults: &[("rms_norm_eps", Preset::Number(1e-5))],
    hf: HF,
    spec,
    written_as: Some("olmo2"),
    ..Arch::PLAIN
};

pub(super) const HF: Stored = Stored {
    names: &[
        (Part::AttentionPostNorm, "post_attention_layernorm"),
        (Part::MlpPostNorm, "post_feedforward_layernorm"),
    ],
    ..Stored::HF
};

pub(super) fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = llama::spec(cfg)?;
    for layer in &mut spec.layers {
        layer.wiring = Wiring::POST;
        layer.gqa_mut().qk_norm = Some(QkNorm::WholeRms);
    }
    Ok(spec)
}
