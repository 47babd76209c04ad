//! StableLM (Stability AI, 2023-2024): Llama with layer norms, a quarter of each head rotated, and
//! in the 12B model mixers beside each other and a norm for each head of q and k.

use super::{Arch, ArchSpec, NormKind, Part, Preset, QkNorm, Residual, Stored, llama};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["StableLmForCausalLM", "StableLMEpochForCausalLM"],
    model_types: &["stablelm", "stablelm_epoch"],
    gguf_names: &["stablelm"],
    spellings: &[("rms_norm_eps", "layer_norm_eps"), ("partial_rotary_factor", "rope_pct")],
    defaults: &[
        ("rms_norm_eps", Preset::Number(1e-5)),
        ("partial_rotary_factor", Preset::Number(0.25)),
    ],
    partial_rotary: true,
    hf: HF,
    spec,
    written_as: Some("stablelm"),
    ..Arch::PLAIN
};

const HF: Stored = Stored {
    names: &[
        (Part::QNorm, "self_attn.q_layernorm.norms.*"),
        (Part::KNorm, "self_attn.k_layernorm.norms.*"),
    ],
    ..Stored::HF
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = llama::spec(cfg)?;
    spec.norm = NormKind::Layer { weight: true, bias: true };
    let is_parallel = cfg.flag("use_parallel_residual", false)?;
    let has_norm = cfg.flag("qk_layernorm", false)?;
    let qkv_bias = cfg.flag("use_qkv_bias", false)?;
    for layer in &mut spec.layers {
        if is_parallel {
            layer.wiring.residual = Residual::ParallelOneNorm;
        }
        let gqa = layer.gqa_mut();
        gqa.qk_norm = has_norm.then_some(QkNorm::HeadLayer);
        (gqa.qkv_bias, gqa.out_bias) = (qkv_bias, false);
    }
    Ok(spec)
}
