//! InternLM 2 (Cai et al., 2024): Llama under other names, with q, k and v fused by groups.

use super::{Arch, ArchSpec, Fused, Part, Stored, llama};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["InternLM2ForCausalLM"],
    model_types: &["internlm2"],
    gguf_names: &["internlm2"],
    hf: HF,
    gguf: Stored { is_in_pairs: true, ..Stored::GGUF },
    spec,
    written_as: Some("internlm2"),
    ..Arch::PLAIN
};

const HF: Stored = Stored {
    names: &[
        (Part::Embedding, "tok_embeddings"),
        (Part::Head, "output"),
        (Part::AttentionNorm, "attention_norm"),
        (Part::Qkv, "attention.wqkv"),
        (Part::O, "attention.wo"),
        (Part::MlpNorm, "ffn_norm"),
        (Part::Gate, "feed_forward.w1"),
        (Part::Up, "feed_forward.w3"),
        (Part::Down, "feed_forward.w2"),
    ],
    qkv: Fused::Grouped,
    ..Stored::HF
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = llama::spec(cfg)?;
    let bias = cfg.flag("bias", false)?;
    for layer in &mut spec.layers {
        let gqa = layer.gqa_mut();
        (gqa.qkv_bias, gqa.out_bias) = (bias, bias);
    }
    Ok(spec)
}
