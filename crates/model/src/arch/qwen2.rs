//! Qwen2 and Qwen2.5 (Yang et al., 2024): Llama with a bias on q, k and v.

use super::{Arch, ArchSpec, llama};
use crate::config::{HfConfig, Window};
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["Qwen2ForCausalLM"],
    model_types: &["qwen2"],
    gguf_names: &["qwen2"],
    written_as: Some("qwen2"),
    spec,
    ..Arch::PLAIN
};

pub(super) fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = llama::spec(cfg)?;
    // Said by models that were made to see the whole text, for vectors.
    let is_causal = cfg.flag("is_causal", true)?;
    for layer in &mut spec.layers {
        let gqa = layer.gqa_mut();
        gqa.qkv_bias = true;
        gqa.out_bias = false;
        gqa.is_causal = is_causal;
    }
    set_windows(&mut spec, cfg);
    Ok(spec)
}

/// Windows of the Qwen families: `sliding_window` is present even where `use_sliding_window` is
/// false, and then the first `max_window_layers` layers still attend to everything.
pub(super) fn set_windows(spec: &mut ArchSpec, cfg: &HfConfig) {
    let Window::Tokens(n) = cfg.sliding_window else { return };
    if !cfg.use_sliding_window {
        return;
    }
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        let gqa = layer.gqa_mut();
        let is_sliding = match &cfg.sliding_layers {
            Some(sliding_layers) => sliding_layers[i],
            None => i >= cfg.max_window_layers,
        };
        gqa.window = is_sliding.then_some(n);
    }
}
