//! Falcon (Almazrouei et al., 2023): layer norms, no gate, q, k and v fused by groups; one KV head
//! and one norm for both mixers in the 7B model, several and two in the later ones, and in the 1B
//! model heads of their own, mixers one after the other and scores that fall with distance.
//!
//! These last are exact here; the reference rounds slope times position to bf16.

use super::{Arch, ArchSpec, Fused, NormKind, Part, Preset, Residual, Stored, llama};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["FalconForCausalLM", "RWForCausalLM"],
    model_types: &["falcon", "RefinedWeb", "RefinedWebModel"],
    gguf_names: &["falcon"],
    spellings: &[
        ("intermediate_size", "ffn_hidden_size"),
        ("num_hidden_layers", "n_layer"),
        ("num_attention_heads", "n_head"),
        ("num_key_value_heads", "num_kv_heads"),
        ("num_key_value_heads", "n_head_kv"),
        ("hidden_act", "activation"),
        ("rms_norm_eps", "layer_norm_epsilon"),
    ],
    defaults: &[
        ("tie_word_embeddings", Preset::Flag(true)),
        ("intermediate_size", Preset::TimesHidden(4)),
        ("max_position_embeddings", Preset::Number(2048.0)),
        ("hidden_act", Preset::Text("gelu")),
        ("rms_norm_eps", Preset::Number(1e-5)),
    ],
    hf: HF,
    gguf: Stored { qkv: Fused::Stacked, names: GGUF_NORMS, ..Stored::GGUF },
    spec,
    ..Arch::PLAIN
};

/// Files of models with two norms call that of attention the second.
const GGUF_NORMS: &[(Part, &str)] = &[
    (Part::AttentionNorm, "attn_norm_2"),
    (Part::AttentionNorm, "attn_norm"),
    (Part::MlpNorm, "attn_norm"),
];

const HF: Stored = Stored {
    prefix: "transformer.",
    layers: "h",
    names: &[
        (Part::Embedding, "word_embeddings"),
        (Part::AttentionNorm, "ln_attn"),
        (Part::AttentionNorm, "input_layernorm"),
        (Part::MlpNorm, "ln_mlp"),
        (Part::MlpNorm, "post_attention_layernorm"),
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
    let mut spec = llama::spec(cfg)?;
    spec.norm = NormKind::Layer { weight: true, bias: true };
    let bias = cfg.flag("bias", false)?;
    spec.set_plain_mlp(cfg, bias);
    let is_new = cfg.flag("new_decoder_architecture", false)?;
    let is_parallel = is_new || cfg.flag("parallel_attn", true)?;
    let n_norms = cfg.field("num_ln_in_parallel_attn");
    let has_two_norms = match n_norms.non_null() {
        Some(field) => is_new && field.integer(1, 2)? == 2,
        None => is_new,
    };
    let n_kv_heads = match (is_new, cfg.flag("multi_query", true)?) {
        (true, _) => cfg.num_key_value_heads,
        (false, true) => 1,
        (false, false) => cfg.num_attention_heads,
    };
    let alibi = cfg.flag("alibi", false)?;
    if alibi {
        spec.ropes.clear();
    }
    for layer in &mut spec.layers {
        layer.wiring.residual = match (is_parallel, has_two_norms) {
            (false, _) => Residual::Sequential,
            (true, false) => Residual::ParallelOneNorm,
            (true, true) => Residual::ParallelTwoNorms,
        };
        let gqa = layer.gqa_mut();
        gqa.n_kv_heads = n_kv_heads;
        (gqa.qkv_bias, gqa.out_bias) = (bias, bias);
        gqa.rope = (!alibi).then_some(0);
        // The slopes are added before the scores are scaled.
        gqa.alibi = alibi.then_some(gqa.scale);
    }
    Ok(spec)
}
