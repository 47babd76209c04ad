//! Helium (Kyutai, 2025): Llama with rotation in pairs of neighbours.

use super::{Arch, ArchSpec, Preset, Stored, llama};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["HeliumForCausalLM"],
    model_types: &["helium"],
    defaults: &[
        ("head_dim", Preset::Number(128.0)),
        ("rms_norm_eps", Preset::Number(1e-8)),
        ("rope_theta", Preset::Number(1e5)),
    ],
    hf: Stored { is_in_pairs: true, ..Stored::HF },
    spec,
    ..Arch::PLAIN
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = llama::spec(cfg)?;
    for layer in &mut spec.layers {
        layer.gqa_mut().out_bias = false;
    }
    Ok(spec)
}
