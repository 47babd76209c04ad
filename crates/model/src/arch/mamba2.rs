//! Mamba 2 (Dao and Gu, 2024): recurrent layers alone, without perceptrons and positions.

use super::{Absent, Arch, ArchSpec, Mlp, Part, Preset, Stored, llama, ssm};
use crate::config::HfConfig;
use crate::fields::ConfigError;

const NAMES: &[(Part, &str)] = ssm::names![
    "mixer",
    (Part::Embedding, "embeddings"),
    (Part::AttentionNorm, "norm"),
    (Part::MlpNorm, "norm"),
    (Part::FinalNorm, "norm_f"),
];

/// A layer has one norm.
pub(super) const GGUF: Stored =
    Stored { names: &[(Part::MlpNorm, "attn_norm")], decays_are_rates: true, ..Stored::GGUF };

pub(super) const ARCH: Arch = Arch {
    names: &["Mamba2ForCausalLM"],
    model_types: &["mamba2"],
    gguf_names: &["mamba2"],
    written_as: Some("mamba2"),
    spellings: &[
        ("rms_norm_eps", "layer_norm_epsilon"),
        ("mamba_n_heads", "num_heads"),
        ("mamba_d_head", "head_dim"),
        ("mamba_n_groups", "n_groups"),
        ("mamba_d_state", "state_size"),
        ("mamba_d_conv", "conv_kernel"),
        ("mamba_expand", "expand"),
        ("mamba_proj_bias", "use_bias"),
        ("mamba_conv_bias", "use_conv_bias"),
    ],
    defaults: &[
        ("rms_norm_eps", Preset::Number(1e-5)),
        ("mamba_n_heads", Preset::Number(128.0)),
        ("mamba_d_head", Preset::Number(64.0)),
        ("mamba_n_groups", Preset::Number(8.0)),
        ("mamba_d_state", Preset::Number(128.0)),
        // There is no attention and no perceptron, and nothing that depends on a position.
        ("num_attention_heads", Preset::Number(1.0)),
        ("head_dim", Preset::Number(64.0)),
        ("intermediate_size", Preset::Number(1.0)),
        ("max_position_embeddings", Preset::Number(1_048_576.0)),
    ],
    hf: Stored { names: NAMES, prefix: "backbone.", ..Stored::HF },
    gguf: GGUF,
    spec,
    ..Arch::PLAIN
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = llama::spec(cfg)?;
    let mamba = ssm::read(cfg)?;
    for layer in &mut spec.layers {
        ssm::put(layer, &mamba);
        layer.mlp = Mlp::Absent(Absent);
    }
    spec.ropes.clear();
    Ok(spec)
}
