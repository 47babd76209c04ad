//! EXAONE 4 (LG AI Research, 2025): OLMo 2's norms, heads of q and k RMS-normalised one by one, and
//! in the models with windows no rotation in layers without.

use super::{Arch, ArchSpec, Preset, QkNorm, olmo2};
use crate::config::HfConfig;
use crate::config::Window;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["Exaone4ForCausalLM"],
    model_types: &["exaone4"],
    gguf_names: &["exaone4"],
    defaults: &[("rms_norm_eps", Preset::Number(1e-5))],
    hf: olmo2::HF,
    spec,
    written_as: Some("exaone4"),
    ..Arch::PLAIN
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = olmo2::spec(cfg)?;
    let has_windows = matches!(cfg.sliding_window, Window::Tokens(_));
    if has_windows && cfg.sliding_layers.is_none() {
        return Err(cfg.field("layer_types").error("which layers have a window"));
    }
    spec.set_windows(cfg, |_| false);
    for layer in &mut spec.layers {
        let gqa = layer.gqa_mut();
        gqa.qk_norm = Some(QkNorm::HeadRms);
        gqa.rope = (!has_windows || gqa.window.is_some()).then_some(0);
    }
    Ok(spec)
}
