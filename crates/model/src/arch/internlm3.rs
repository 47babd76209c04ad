//! InternLM 3 (Shanghai AI Laboratory, 2025): Llama with biases where the config says.

use super::{Arch, ArchSpec, llama};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["InternLM3ForCausalLM"],
    model_types: &["internlm3"],
    spellings: &[("attention_bias", "qkv_bias"), ("mlp_bias", "bias")],
    spec,
    ..Arch::PLAIN
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = llama::spec(cfg)?;
    for layer in &mut spec.layers {
        layer.gqa_mut().out_bias = cfg.mlp_bias;
    }
    Ok(spec)
}
