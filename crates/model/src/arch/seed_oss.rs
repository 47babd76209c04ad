//! Seed-OSS (ByteDance, 2025): Llama with a bias on q, k and v, and one on the output of its own.

use super::{Arch, ArchSpec, Part, Preset, Stored, llama};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["SeedOssForCausalLM"],
    model_types: &["seed_oss"],
    gguf_names: &["seed_oss"],
    defaults: &[("attention_bias", Preset::Flag(true)), ("head_dim", Preset::Number(128.0))],
    gguf: Stored { names: &[(Part::MlpNorm, "post_attention_norm")], ..Stored::GGUF },
    spec,
    written_as: Some("seed_oss"),
    ..Arch::PLAIN
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = llama::spec(cfg)?;
    let out_bias = cfg.flag("attention_out_bias", false)?;
    for layer in &mut spec.layers {
        layer.gqa_mut().out_bias = out_bias;
    }
    Ok(spec)
}
