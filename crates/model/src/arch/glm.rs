//! GLM-4 in its first form (GLM Team, 2024): Llama with a bias on q, k and v, a fused gate, and
//! half of each head rotated, in pairs of neighbours.

use super::{Arch, ArchSpec, Fused, Preset, Stored, llama};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["GlmForCausalLM"],
    model_types: &["glm"],
    gguf_names: &["chatglm"],
    defaults: DEFAULTS,
    partial_rotary: true,
    hf: Stored { is_gate_up_fused: true, is_in_pairs: true, ..Stored::HF },
    gguf: Stored { qkv: Fused::Stacked, is_gate_up_fused: true, is_in_pairs: true, ..Stored::GGUF },
    spec,
    written_as: Some("chatglm"),
    ..Arch::PLAIN
};

pub(super) const DEFAULTS: &[(&str, Preset)] = &[
    ("partial_rotary_factor", Preset::Number(0.5)),
    ("head_dim", Preset::Number(128.0)),
    ("num_key_value_heads", Preset::Number(2.0)),
    ("rms_norm_eps", Preset::Number(1.5625e-7)),
    ("attention_bias", Preset::Flag(true)),
];

pub(super) fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = llama::spec(cfg)?;
    for layer in &mut spec.layers {
        layer.gqa_mut().out_bias = false;
    }
    Ok(spec)
}
