//! Phi-3 and Phi-4 (Abdin et al., 2024): Llama with fused projections, LongRoPE, and in the later
//! models heads that are rotated in part.

use super::{Arch, ArchSpec, Fused, Stored, llama};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["Phi3ForCausalLM"],
    model_types: &["phi3"],
    gguf_names: &["phi3"],
    partial_rotary: true,
    hf: Stored { qkv: Fused::Stacked, is_gate_up_fused: true, ..Stored::HF },
    gguf: Stored { qkv: Fused::Stacked, is_gate_up_fused: true, ..Stored::GGUF },
    spec,
    written_as: Some("phi3"),
    ..Arch::PLAIN
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = llama::spec(cfg)?;
    spec.set_windows(cfg, |_| true);
    Ok(spec)
}
