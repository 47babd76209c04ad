//! DistilBERT (Sanh et al., 2019): BERT without kinds of tokens, under other names.

use crate::arch::{Arch, ArchSpec, ClassHead, Part, Preset, Stored};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["DistilBertModel", "DistilBertForMaskedLM"],
    model_types: &["distilbert"],
    spellings: &[
        ("hidden_size", "dim"),
        ("intermediate_size", "hidden_dim"),
        ("num_hidden_layers", "n_layers"),
        ("num_attention_heads", "n_heads"),
        ("hidden_act", "activation"),
    ],
    defaults: &[
        ("hidden_act", Preset::Text("gelu")),
        ("max_position_embeddings", Preset::Number(512.0)),
        ("rms_norm_eps", Preset::Number(1e-12)),
    ],
    hf: Stored {
        prefix: "distilbert.",
        layers: "transformer.layer",
        names: &[
            (Part::Embedding, "embeddings.word_embeddings"),
            (Part::Positions, "embeddings.position_embeddings"),
            (Part::EmbeddingNorm, "embeddings.LayerNorm"),
            (Part::Q, "attention.q_lin"),
            (Part::K, "attention.k_lin"),
            (Part::V, "attention.v_lin"),
            (Part::O, "attention.out_lin"),
            (Part::AttentionPostNorm, "sa_layer_norm"),
            (Part::Up, "ffn.lin1"),
            (Part::Down, "ffn.lin2"),
            (Part::MlpPostNorm, "output_layer_norm"),
        ],
        ..Stored::HF
    },
    classifier: Some(ClassHead::DISTIL),
    spec,
    ..Arch::PLAIN
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    // A table of sines is stored like a learned one.
    let mut spec = super::spec(cfg)?;
    super::set_positions(&mut spec, cfg, 0)?;
    Ok(spec)
}
