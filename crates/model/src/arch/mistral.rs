//! Mistral 7B (Jiang et al., 2023): Llama with a sliding attention window in every layer.

use super::{Arch, ArchSpec, Stored, llama};
use crate::config::{HfConfig, Window};
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["MistralForCausalLM"],
    model_types: &["mistral"],
    // Converters write these checkpoints as `llama`; some name them.
    gguf_names: &["mistral"],
    gguf: Stored { is_in_pairs: true, ..Stored::GGUF },
    written_as: Some("llama"),
    spec,
    ..Arch::PLAIN
};

/// The window of a config that does not mention one.
const DEFAULT_WINDOW: usize = 4096;

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = llama::spec(cfg)?;
    for layer in &mut spec.layers {
        let gqa = layer.gqa_mut();
        gqa.window = match cfg.sliding_window {
            Window::Absent => Some(DEFAULT_WINDOW),
            Window::Off => None,
            Window::Tokens(n) => Some(n),
        };
    }
    Ok(spec)
}
