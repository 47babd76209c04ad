//! OLMo (Groeneveld et al., 2024): Llama with layer norms that have neither weight nor bias, and a
//! bound on q, k and v.

use super::{Arch, ArchSpec, NormKind, Stored, llama};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["OlmoForCausalLM"],
    model_types: &["olmo"],
    gguf_names: &["olmo"],
    gguf: Stored { is_in_pairs: true, ..Stored::GGUF },
    spec,
    written_as: Some("olmo"),
    ..Arch::PLAIN
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = llama::spec(cfg)?;
    spec.norm = NormKind::Layer { weight: false, bias: false };
    spec.norm_eps = 1e-5;
    let clip = cfg.cap("clip_qkv")?;
    for layer in &mut spec.layers {
        layer.gqa_mut().clip = clip;
    }
    Ok(spec)
}
