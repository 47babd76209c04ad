//! BLOOM (BigScience, 2022): layer norms, one of them on the embeddings; scores that fall with
//! distance in place of rotation; no gate.

use super::{Arch, ArchSpec, Fused, NormKind, Part, Preset, Stored, llama};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["BloomForCausalLM"],
    model_types: &["bloom"],
    gguf_names: &["bloom"],
    spellings: &[
        ("hidden_size", "n_embed"),
        ("num_hidden_layers", "n_layer"),
        ("num_attention_heads", "n_head"),
        ("max_position_embeddings", "seq_length"),
        ("rms_norm_eps", "layer_norm_epsilon"),
    ],
    defaults: &[
        ("tie_word_embeddings", Preset::Flag(true)),
        ("intermediate_size", Preset::TimesHidden(4)),
        ("max_position_embeddings", Preset::Number(2048.0)),
        ("hidden_act", Preset::Text("gelu_pytorch_tanh")),
        ("rms_norm_eps", Preset::Number(1e-5)),
    ],
    hf: HF,
    gguf: Stored { qkv: Fused::Stacked, ..Stored::GGUF },
    spec,
    written_as: Some("bloom"),
    ..Arch::PLAIN
};

const HF: Stored = Stored {
    prefix: "transformer.",
    layers: "h",
    names: &[
        (Part::Embedding, "word_embeddings"),
        (Part::EmbeddingNorm, "word_embeddings_layernorm"),
        (Part::FinalNorm, "ln_f"),
        (Part::Qkv, "self_attention.query_key_value"),
        (Part::O, "self_attention.dense"),
        (Part::Up, "mlp.dense_h_to_4h"),
        (Part::Down, "mlp.dense_4h_to_h"),
    ],
    qkv: Fused::Grouped,
    ..Stored::HF
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    cfg.expect_flag("apply_residual_connection_post_layernorm", false)?;
    let mut spec = llama::spec(cfg)?;
    spec.norm = NormKind::Layer { weight: true, bias: true };
    spec.ropes.clear();
    spec.embedding_norm = true;
    spec.set_plain_mlp(cfg, true);
    for layer in &mut spec.layers {
        let gqa = layer.gqa_mut();
        (gqa.qkv_bias, gqa.out_bias) = (true, true);
        (gqa.rope, gqa.alibi) = (None, Some(1.0));
    }
    Ok(spec)
}
