//! DeepSeek V2, V2 Lite, V3 and R1 (DeepSeek-AI, 2024), and Kimi K2, which is V3 with other numbers:
//! latent attention, and after some dense layers mixtures of experts.
//!
//! What only V3 has, modules that predict further tokens, is not loaded.

use super::{Arch, ArchSpec, Mixer, Mla, Part, Stored, llama};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const V2: Arch = Arch {
    names: &["DeepseekV2ForCausalLM"],
    model_types: &["deepseek_v2"],
    // V3 as well: its files differ in what they say of experts.
    gguf_names: &["deepseek2"],
    spellings: HEADS,
    hf: HF,
    gguf: GGUF,
    spec,
    ..Arch::PLAIN
};

pub(super) const V3: Arch = Arch {
    names: &["DeepseekV3ForCausalLM"],
    model_types: &["deepseek_v3", "kimi_k2"],
    gguf_names: &[],
    ..V2
};

/// What rotary embeddings are read with.
pub(super) const HEADS: &[(&str, &str)] = &[("head_dim", "qk_rope_head_dim")];

pub(super) const HF: Stored = Stored { names: HF_NAMES, ..Stored::HF };

const HF_NAMES: &[(Part, &str)] =
    &[(Part::QNorm, "self_attn.q_a_layernorm"), (Part::KNorm, "self_attn.kv_a_layernorm")];

const GGUF: Stored = Stored {
    names: &[(Part::QNorm, "attn_q_a_norm"), (Part::KNorm, "attn_kv_a_norm")],
    ..Stored::GGUF
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = llama::spec(cfg)?;
    let mla = Mla::read(cfg, cfg.flag("rope_interleave", true)?)?;
    for layer in &mut spec.layers {
        layer.mixer = Mixer::Mla(mla.clone());
    }
    Ok(spec)
}
