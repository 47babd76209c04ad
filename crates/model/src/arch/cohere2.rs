//! Command R7B and A (Cohere, 2024): Command R with a window in three of four layers; the fourth
//! sees everything and rotates nothing.

use super::{Arch, ArchSpec, Preset, Stored, cohere};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["Cohere2ForCausalLM"],
    model_types: &["cohere2"],
    gguf_names: &["cohere2"],
    spellings: &[("rms_norm_eps", "layer_norm_eps")],
    defaults: &[
        ("tie_word_embeddings", Preset::Flag(true)),
        ("rms_norm_eps", Preset::Number(1e-5)),
        ("logit_scale", Preset::Number(0.0625)),
        ("sliding_window", Preset::Number(4096.0)),
        ("sliding_window_pattern", Preset::Number(4.0)),
    ],
    hf: Stored { is_in_pairs: true, ..Stored::HF },
    gguf: Stored { is_in_pairs: true, ..Stored::GGUF },
    spec,
    written_as: Some("cohere2"),
    ..Arch::PLAIN
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = cohere::spec(cfg)?;
    let pattern = cfg.field("sliding_window_pattern").count(1 << 20)?;
    spec.set_windows(cfg, |layer| (layer + 1) % pattern != 0);
    for layer in &mut spec.layers {
        let gqa = layer.gqa_mut();
        gqa.rope = gqa.window.map(|_| 0);
    }
    Ok(spec)
}
