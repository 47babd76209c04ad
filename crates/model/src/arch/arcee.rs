//! AFM (Arcee AI, 2025): Llama with a squared ReLU and no gate.

use super::{Arch, ArchSpec, Preset, Stored, llama};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["ArceeForCausalLM"],
    model_types: &["arcee"],
    gguf_names: &["arcee"],
    defaults: &[("hidden_act", Preset::Text("relu2")), ("rms_norm_eps", Preset::Number(1e-5))],
    gguf: Stored { is_in_pairs: true, ..Stored::GGUF },
    spec,
    written_as: Some("arcee"),
    ..Arch::PLAIN
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = llama::spec(cfg)?;
    spec.set_plain_mlp(cfg, cfg.mlp_bias);
    Ok(spec)
}
