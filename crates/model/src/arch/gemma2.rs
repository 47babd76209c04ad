//! Gemma 2 (Gemma Team, 2024): Gemma with norms after its mixers too, soft caps, and a window in
//! every second layer.

use super::{Arch, ArchSpec, Part, Preset, Stored, Wiring, gemma};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["Gemma2ForCausalLM"],
    model_types: &["gemma2"],
    gguf_names: &["gemma2"],
    defaults: &[
        ("tie_word_embeddings", Preset::Flag(true)),
        ("head_dim", Preset::Number(256.0)),
        ("attn_logit_softcapping", Preset::Number(50.0)),
        ("final_logit_softcapping", Preset::Number(30.0)),
        ("sliding_window", Preset::Number(4096.0)),
    ],
    hf: HF,
    written_as: Some("gemma2"),
    implies_embedding_scale: true,
    spec,
    ..Arch::PLAIN
};

/// The middle norms of Llama's names come after attention here.
pub(super) const HF: Stored = Stored {
    norm_offset: 1.0,
    names: &[
        (Part::AttentionPostNorm, "post_attention_layernorm"),
        (Part::MlpNorm, "pre_feedforward_layernorm"),
        (Part::MlpPostNorm, "post_feedforward_layernorm"),
    ],
    ..Stored::HF
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    cfg.expect_flag("use_bidirectional_attention", false)?;
    let mut spec = sandwich(cfg)?;
    spec.set_windows(cfg, |layer| layer % 2 == 0);
    Ok(spec)
}

/// The parts that Gemma 3 shares.
pub(super) fn sandwich(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = gemma::shared(cfg)?;
    let softcap = cfg.cap("attn_logit_softcapping")?;
    // Where the file does not say: the models of 27B divide by the width that a head would have if
    // all heads together were as wide as the model.
    let is_27b = [46, 62].contains(&cfg.num_hidden_layers);
    let usual = if is_27b { cfg.hidden_size / cfg.num_attention_heads } else { cfg.head_dim };
    let divisor = cfg.number("query_pre_attn_scalar", usual as f64, [1e-3, 1e6])?;
    for layer in &mut spec.layers {
        layer.wiring = Wiring::SANDWICH;
        let gqa = layer.gqa_mut();
        gqa.scale = divisor.sqrt().recip();
        gqa.softcap = softcap;
    }
    Ok(spec)
}
