//! Qwen3.5 and Qwen3.6, text models (Qwen Team, 2026): Qwen3-Next with its projections in tensors of
//! their own; perceptrons or experts in all layers.

use super::{Arch, ArchSpec, Preset, Stored, ValueHeads, qwen3_next};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["Qwen3_5ForCausalLM"],
    model_types: &["qwen3_5_text"],
    gguf_names: &["qwen35"],
    written_as: Some("qwen35"),
    spec: qwen3_next::mixers,
    ..FAMILY
};

pub(super) const MOE: Arch = Arch {
    names: &["Qwen3_5MoeForCausalLM"],
    model_types: &["qwen3_5_moe_text"],
    gguf_names: &["qwen35moe"],
    written_as: Some("qwen35moe"),
    spec: with_experts,
    ..FAMILY
};

const FAMILY: Arch = Arch {
    defaults: &[
        ("partial_rotary_factor", Preset::Number(0.25)),
        ("full_attention_interval", Preset::Number(4.0)),
        ("linear_conv_kernel_dim", Preset::Number(4.0)),
        ("linear_key_head_dim", Preset::Number(128.0)),
        ("linear_value_head_dim", Preset::Number(128.0)),
        ("linear_num_key_heads", Preset::Number(16.0)),
        ("linear_num_value_heads", Preset::Number(32.0)),
        ("head_dim", Preset::Number(256.0)),
        ("moe_intermediate_size", Preset::Number(512.0)),
        ("shared_expert_intermediate_size", Preset::Number(512.0)),
        ("intermediate_size", Preset::Number(12_288.0)),
        ("norm_topk_prob", Preset::Flag(true)),
    ],
    gguf: Stored { value_heads: ValueHeads::Tiled, ..qwen3_next::GGUF },
    ..qwen3_next::ARCH
};

fn with_experts(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = qwen3_next::mixers(cfg)?;
    qwen3_next::set_experts(&mut spec, cfg, |_| true)?;
    Ok(spec)
}
