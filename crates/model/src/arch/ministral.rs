//! Ministral (Mistral AI, 2024): Llama with a window in the layers that the config names.

use super::{Arch, ArchSpec, llama};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch =
    Arch { names: &["MinistralForCausalLM"], model_types: &["ministral"], spec, ..Arch::PLAIN };

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = llama::spec(cfg)?;
    spec.set_windows(cfg, |_| true);
    Ok(spec)
}
