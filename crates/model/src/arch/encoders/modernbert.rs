//! ModernBERT (Warner et al., 2024): norms before the mixers, rotated q and k, a gate in the
//! perceptron, and two of three layers that see only a window, with a rotation of their own.

use crate::arch::{
    Arch, ArchSpec, ClassHead, Ends, Fused, GatedMlp, Mlp, NormKind, Part, Preset, Stored, Wiring,
};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["ModernBertModel", "ModernBertForMaskedLM"],
    model_types: &["modernbert"],
    spellings: &[
        ("rms_norm_eps", "norm_eps"),
        ("hidden_act", "hidden_activation"),
        ("rope_theta", "global_rope_theta"),
        ("rope_local_base_freq", "local_rope_theta"),
    ],
    defaults: &[
        ("hidden_act", Preset::Text("gelu")),
        ("rms_norm_eps", Preset::Number(1e-5)),
        ("rope_theta", Preset::Number(160_000.0)),
        ("rope_local_base_freq", Preset::Number(10_000.0)),
        ("global_attn_every_n_layers", Preset::Number(3.0)),
        ("local_attention", Preset::Number(128.0)),
    ],
    hf: Stored {
        names: &[
            (Part::Embedding, "embeddings.tok_embeddings"),
            (Part::EmbeddingNorm, "embeddings.norm"),
            (Part::AttentionNorm, "attn_norm"),
            (Part::Qkv, "attn.Wqkv"),
            (Part::O, "attn.Wo"),
            (Part::MlpNorm, "mlp_norm"),
            (Part::GateUp, "mlp.Wi"),
            (Part::Down, "mlp.Wo"),
            (Part::FinalNorm, "final_norm"),
        ],
        qkv: Fused::Stacked,
        is_gate_up_fused: true,
        ..Stored::HF
    },
    classifier: Some(ClassHead::MODERN),
    spec,
    ..Arch::PLAIN
};

/// Most tokens that a window may have, or layers from one that sees all to the next.
const MOST: usize = 1 << 20;

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = super::spec(cfg)?;
    spec.norm = NormKind::Layer { weight: true, bias: cfg.flag("norm_bias", false)? };
    spec.ends = Ends { first_norm: false, head: false, ..Ends::DECODER };
    spec.ropes.extend(cfg.local_rope.clone());
    let local = spec.ropes.len() - 1;
    let every = cfg.field("global_attn_every_n_layers").count(MOST)?;
    // The field counts both sides; the token itself is on neither.
    let window = cfg.field("local_attention").count(MOST)? / 2 + 1;
    let bias = cfg.attention_bias.unwrap_or(false);
    let mlp_bias = cfg.mlp_bias;
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        let is_local = cfg.sliding_layers.as_ref().map_or(i % every != 0, |list| list[i]);
        layer.wiring = Wiring::PRE;
        layer.mlp = Mlp::Gated(GatedMlp {
            intermediate_size: cfg.intermediate_size,
            act: cfg.hidden_act,
            bias: mlp_bias,
            cut: None,
        });
        let gqa = layer.gqa_mut();
        (gqa.qkv_bias, gqa.out_bias) = (bias, bias);
        (gqa.window, gqa.rope) =
            if is_local { (Some(window), Some(local)) } else { (None, Some(0)) };
    }
    Ok(spec)
}
