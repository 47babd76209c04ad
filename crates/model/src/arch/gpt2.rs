//! GPT-2 (Radford et al., 2019): layer norms, learned positions, biases everywhere, no gate,
//! matrices stored transposed.

use super::{Arch, ArchSpec, Fused, LearnedPositions, NormKind, Part, Preset, Stored, llama};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["GPT2LMHeadModel"],
    model_types: &["gpt2"],
    gguf_names: &["gpt2"],
    spellings: SPELLINGS,
    defaults: &[
        ("tie_word_embeddings", Preset::Flag(true)),
        ("intermediate_size", Preset::TimesHidden(4)),
        ("hidden_act", Preset::Text("gelu_new")),
        ("rms_norm_eps", Preset::Number(1e-5)),
    ],
    hf: Stored { is_transposed: true, ..HF },
    gguf: Stored { qkv: Fused::Stacked, ..Stored::GGUF },
    spec,
    ..Arch::PLAIN
};

pub(super) const SPELLINGS: &[(&str, &str)] = &[
    ("hidden_size", "n_embd"),
    ("intermediate_size", "n_inner"),
    ("num_hidden_layers", "n_layer"),
    ("num_attention_heads", "n_head"),
    ("max_position_embeddings", "n_positions"),
    ("hidden_act", "activation_function"),
    ("rms_norm_eps", "layer_norm_epsilon"),
];

pub(super) const HF: Stored = Stored {
    prefix: "transformer.",
    layers: "h",
    names: &[
        (Part::Embedding, "wte"),
        (Part::Positions, "wpe"),
        (Part::FinalNorm, "ln_f"),
        (Part::AttentionNorm, "ln_1"),
        (Part::Qkv, "attn.c_attn"),
        (Part::O, "attn.c_proj"),
        (Part::MlpNorm, "ln_2"),
        (Part::Up, "mlp.c_fc"),
        (Part::Down, "mlp.c_proj"),
    ],
    qkv: Fused::Stacked,
    ..Stored::HF
};

pub(super) fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    cfg.expect_flag("scale_attn_weights", true)?;
    cfg.expect_flag("scale_attn_by_inverse_layer_idx", false)?;
    let mut spec = llama::spec(cfg)?;
    spec.norm = NormKind::Layer { weight: true, bias: true };
    spec.ropes.clear();
    spec.positions = Some(LearnedPositions { n_rows: spec.max_context, first_row: 0 });
    spec.set_plain_mlp(cfg, true);
    for layer in &mut spec.layers {
        let gqa = layer.gqa_mut();
        (gqa.qkv_bias, gqa.out_bias, gqa.rope) = (true, true, None);
    }
    Ok(spec)
}
