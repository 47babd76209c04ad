//! RoBERTa (Liu et al., 2019) and XLM-RoBERTa (Conneau et al., 2020): BERT whose texts begin at the
//! position after that of padding.

use pelton_base::limits;

use super::bert;
use crate::arch::{Arch, ArchSpec, ClassHead, Preset, Stored};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &[
        "RobertaModel",
        "RobertaForMaskedLM",
        "XLMRobertaModel",
        "XLMRobertaForMaskedLM",
        "CamembertModel",
    ],
    model_types: &["roberta", "xlm-roberta", "camembert"],
    spellings: &[("rms_norm_eps", "layer_norm_eps")],
    defaults: &[
        ("hidden_act", Preset::Text("gelu")),
        ("type_vocab_size", Preset::Number(2.0)),
        ("max_position_embeddings", Preset::Number(512.0)),
        ("rms_norm_eps", Preset::Number(1e-12)),
        ("pad_token_id", Preset::Number(1.0)),
    ],
    hf: Stored { prefix: "roberta.", ..bert::HF },
    gguf: bert::GGUF,
    classifier: Some(ClassHead::ROBERTA),
    spec,
    ..Arch::PLAIN
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = super::spec(cfg)?;
    let padding = cfg.field("pad_token_id").integer(0, limits::MODEL_CONTEXT)?;
    super::set_positions(&mut spec, cfg, padding + 1)?;
    spec.ends.n_token_types = super::n_token_types(cfg)?;
    Ok(spec)
}
