//! Qwen3 (Yang et al., 2025): Llama with RMS-normalised q and k heads.

use super::{Arch, ArchSpec, GgufRows, Mixer, llama, qwen2};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["Qwen3ForCausalLM"],
    model_types: &["qwen3"],
    gguf_names: &["qwen3"],
    gguf_rows: GgufRows::HalfSplit,
    spec,
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = llama::spec(cfg)?;
    for layer in &mut spec.layers {
        let Mixer::Gqa(gqa) = &mut layer.mixer;
        gqa.qk_norm = true;
    }
    qwen2::set_windows(&mut spec, cfg);
    Ok(spec)
}
