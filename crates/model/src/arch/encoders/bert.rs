//! BERT (Devlin et al., 2019): learned positions, two kinds of tokens of which a text alone is the
//! first, norms after each addition.

use crate::arch::{Arch, ArchSpec, ClassHead, Part, Preset, Stored};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["BertModel", "BertForMaskedLM"],
    model_types: &["bert"],
    // Files of RoBERTa bear the same name: their tables begin with the position that is used first.
    gguf_names: &["bert"],
    spellings: &[("rms_norm_eps", "layer_norm_eps")],
    defaults: DEFAULTS,
    hf: HF,
    gguf: GGUF,
    classifier: Some(ClassHead::BERT),
    spec,
    ..Arch::PLAIN
};

pub(super) const DEFAULTS: &[(&str, Preset)] = &[
    ("hidden_act", Preset::Text("gelu")),
    ("type_vocab_size", Preset::Number(2.0)),
    ("max_position_embeddings", Preset::Number(512.0)),
    ("rms_norm_eps", Preset::Number(1e-12)),
];

pub(super) const HF: Stored = Stored {
    prefix: "bert.",
    layers: "encoder.layer",
    names: &[
        (Part::Embedding, "embeddings.word_embeddings"),
        (Part::Positions, "embeddings.position_embeddings"),
        (Part::TokenTypes, "embeddings.token_type_embeddings"),
        (Part::EmbeddingNorm, "embeddings.LayerNorm"),
        (Part::Q, "attention.self.query"),
        (Part::K, "attention.self.key"),
        (Part::V, "attention.self.value"),
        (Part::O, "attention.output.dense"),
        (Part::AttentionPostNorm, "attention.output.LayerNorm"),
        (Part::Up, "intermediate.dense"),
        (Part::Down, "output.dense"),
        (Part::MlpPostNorm, "output.LayerNorm"),
    ],
    ..Stored::HF
};

pub(super) const GGUF: Stored = Stored {
    names: &[
        (Part::AttentionPostNorm, "attn_output_norm"),
        (Part::MlpPostNorm, "layer_output_norm"),
    ],
    ..Stored::GGUF
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = super::spec(cfg)?;
    super::set_positions(&mut spec, cfg, 0)?;
    spec.ends.n_token_types = super::n_token_types(cfg)?;
    Ok(spec)
}
