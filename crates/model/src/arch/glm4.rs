//! GLM-4-0414 (Z.ai, 2025): GLM-4 with norms after its mixers too.

use super::{Arch, ArchSpec, Stored, Wiring, glm};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["Glm4ForCausalLM"],
    model_types: &["glm4"],
    gguf_names: &["glm4"],
    defaults: glm::DEFAULTS,
    partial_rotary: true,
    hf: Stored { is_gate_up_fused: true, is_in_pairs: true, ..Stored::HF },
    gguf: Stored { is_gate_up_fused: true, is_in_pairs: true, ..Stored::GGUF },
    spec,
    written_as: Some("glm4"),
    ..Arch::PLAIN
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = glm::spec(cfg)?;
    for layer in &mut spec.layers {
        layer.wiring = Wiring::SANDWICH;
    }
    Ok(spec)
}
