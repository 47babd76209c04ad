//! Nomic BERT (Nussbaum et al., 2024): BERT with rotated q and k in place of positions, a gate in
//! the perceptron, and biases in norms alone. Its configs spell fields as GPT-2 does, or as BERT.

use crate::arch::{Arch, ArchSpec, Fused, GatedMlp, Mlp, Part, Preset, Stored};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["NomicBertModel"],
    model_types: &["nomic_bert"],
    gguf_names: &["nomic-bert"],
    spellings: &[
        ("hidden_size", "n_embd"),
        ("intermediate_size", "n_inner"),
        ("num_hidden_layers", "n_layer"),
        ("num_attention_heads", "n_head"),
        ("max_position_embeddings", "n_positions"),
        ("rms_norm_eps", "layer_norm_epsilon"),
        ("rms_norm_eps", "layer_norm_eps"),
        ("rope_theta", "rotary_emb_base"),
    ],
    defaults: &[
        ("intermediate_size", Preset::TimesHidden(4)),
        ("max_position_embeddings", Preset::Number(2048.0)),
        ("type_vocab_size", Preset::Number(2.0)),
        ("rms_norm_eps", Preset::Number(1e-12)),
        ("rope_theta", Preset::Number(1000.0)),
        ("rotary_emb_fraction", Preset::Number(1.0)),
    ],
    hf: Stored {
        prefix: "",
        layers: "encoder.layers",
        names: &[
            (Part::Embedding, "embeddings.word_embeddings"),
            (Part::TokenTypes, "embeddings.token_type_embeddings"),
            (Part::EmbeddingNorm, "emb_ln"),
            (Part::Qkv, "attn.Wqkv"),
            (Part::O, "attn.out_proj"),
            (Part::AttentionPostNorm, "norm1"),
            (Part::Gate, "mlp.fc12"),
            (Part::Up, "mlp.fc11"),
            (Part::Down, "mlp.fc2"),
            (Part::MlpPostNorm, "norm2"),
        ],
        qkv: Fused::Stacked,
        ..Stored::HF
    },
    gguf: Stored { qkv: Fused::Stacked, ..super::bert::GGUF },
    classifier: None,
    spec,
    ..Arch::PLAIN
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    for (name, supported) in [
        ("prenorm", false),
        ("causal", false),
        ("use_rms_norm", false),
        ("qkv_proj_bias", false),
        ("mlp_fc1_bias", false),
        ("mlp_fc2_bias", false),
        ("rotary_emb_interleaved", false),
    ] {
        cfg.expect_flag(name, supported)?;
    }
    let experts = cfg.field("moe_every_n_layers");
    if experts.value().is_some() && experts.integer(0, 0).is_err() {
        return Err(experts.error("0: a mixture of experts is not supported here"));
    }
    let fraction = cfg.field("rotary_emb_fraction");
    if fraction.number(0.0, 1.0)? != 1.0 {
        return Err(fraction.error("1: this family rotates all of a head"));
    }
    let gate = cfg.field("activation_function");
    if !matches!(gate.text()?, None | Some("swiglu")) {
        return Err(gate.error("\"swiglu\", all that is supported"));
    }
    let mut spec = super::spec(cfg)?;
    spec.ends.n_token_types = super::n_token_types(cfg)?;
    for layer in &mut spec.layers {
        layer.mlp = Mlp::Gated(GatedMlp {
            intermediate_size: cfg.intermediate_size,
            act: cfg.hidden_act,
            bias: false,
            cut: None,
        });
        let gqa = layer.gqa_mut();
        (gqa.qkv_bias, gqa.out_bias) = (false, false);
    }
    Ok(spec)
}
