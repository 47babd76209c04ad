//! Gemma 3, text models (Gemma Team, 2025): Gemma 2 with RMS-normalised q and k in place of caps,
//! five layers with a window for each without, and a rotation of its own in these.

use super::{Arch, ArchSpec, Preset, QkNorm, gemma2};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["Gemma3ForCausalLM"],
    model_types: &["gemma3_text"],
    gguf_names: &["gemma3"],
    defaults: &[
        ("tie_word_embeddings", Preset::Flag(true)),
        ("head_dim", Preset::Number(256.0)),
        ("sliding_window", Preset::Number(4096.0)),
        ("sliding_window_pattern", Preset::Number(6.0)),
        ("rope_theta", Preset::Number(1e6)),
        ("rope_local_base_freq", Preset::Number(1e4)),
    ],
    hf: gemma2::HF,
    written_as: Some("gemma3"),
    implies_embedding_scale: true,
    spec,
    ..Arch::PLAIN
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = gemma2::sandwich(cfg)?;
    let pattern = cfg.field("sliding_window_pattern").count(1 << 20)?;
    spec.set_windows(cfg, |layer| (layer + 1) % pattern != 0);
    spec.ropes.extend(cfg.local_rope.clone());
    let local = spec.ropes.len() - 1;
    let sees_all = cfg.flag("use_bidirectional_attention", false)?;
    for layer in &mut spec.layers {
        let gqa = layer.gqa_mut();
        gqa.qk_norm = Some(QkNorm::HeadRms);
        gqa.rope = Some(if gqa.window.is_some() { local } else { 0 });
        if sees_all {
            // EmbeddingGemma: the field counts both sides.
            gqa.is_causal = false;
            gqa.window = gqa.window.map(|n| n / 2 + 1);
        }
    }
    Ok(spec)
}
