//! OLMo 3 (OLMo Team, 2025): OLMo 2 with a window in three of four layers; layers with a
//! window keep the plain rotation, layers without one stretch it.

use super::{Arch, ArchSpec, Preset, olmo2};
use crate::config::HfConfig;
use crate::fields::ConfigError;
use crate::rope::{RopeScaling, RopeSpec};

pub(super) const ARCH: Arch = Arch {
    names: &["Olmo3ForCausalLM"],
    model_types: &["olmo3"],
    defaults: &[
        ("rms_norm_eps", Preset::Number(1e-5)),
        ("rope_theta", Preset::Number(5e5)),
        ("sliding_window", Preset::Number(4096.0)),
    ],
    hf: olmo2::HF,
    spec,
    written_as: Some("olmo2"),
    ..Arch::PLAIN
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = olmo2::spec(cfg)?;
    spec.set_windows(cfg, |layer| (layer + 1) % 4 != 0);
    let plain = || RopeSpec { scaling: RopeScaling::Default, ..cfg.rope.clone() };
    spec.ropes.push(cfg.local_rope.clone().unwrap_or_else(plain));
    for layer in &mut spec.layers {
        let gqa = layer.gqa_mut();
        gqa.rope = Some(usize::from(gqa.window.is_some()));
    }
    Ok(spec)
}
