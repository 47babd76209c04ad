//! Nemotron-4 and Minitron (NVIDIA, 2024): layer norms stored minus one, half of each head rotated,
//! a squared ReLU and no gate.

use super::{Arch, ArchSpec, NormKind, Preset, Stored, llama};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["NemotronForCausalLM"],
    model_types: &["nemotron"],
    gguf_names: &["nemotron"],
    spellings: &[("rms_norm_eps", "norm_eps"), ("partial_rotary_factor", "rope_percent")],
    defaults: &[
        ("hidden_act", Preset::Text("relu2")),
        ("rms_norm_eps", Preset::Number(1e-5)),
        ("partial_rotary_factor", Preset::Number(0.5)),
    ],
    partial_rotary: true,
    hf: Stored { norm_offset: 1.0, ..Stored::HF },
    spec,
    written_as: Some("nemotron"),
    ..Arch::PLAIN
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = llama::spec(cfg)?;
    spec.norm = NormKind::Layer { weight: true, bias: true };
    spec.set_plain_mlp(cfg, cfg.mlp_bias);
    Ok(spec)
}
