//! Bamba (IBM, Princeton, CMU and UIUC, 2024): Llama with Mamba 2 in most layers.

use super::{Arch, ArchSpec, Part, Preset, Stored, llama, ssm};
use crate::config::HfConfig;
use crate::fields::{ConfigError, Field};

const NAMES: &[(Part, &str)] = ssm::names![
    "mamba",
    (Part::MlpNorm, "pre_ff_layernorm"),
    (Part::FinalNorm, "final_layernorm"),
    (Part::Gate, "feed_forward.gate_proj"),
    (Part::Up, "feed_forward.up_proj"),
    (Part::Down, "feed_forward.down_proj"),
];

pub(super) const ARCH: Arch = Arch {
    names: &["BambaForCausalLM"],
    model_types: &["bamba"],
    defaults: &[
        ("partial_rotary_factor", Preset::Number(0.5)),
        ("mamba_n_heads", Preset::Number(128.0)),
        ("mamba_d_state", Preset::Number(256.0)),
    ],
    layer_kinds: ssm::KINDS,
    partial_rotary: true,
    hf: Stored { names: NAMES, ..Stored::HF },
    spec,
    ..Arch::PLAIN
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = llama::spec(cfg)?;
    let mamba = ssm::read(cfg)?;
    let n_layers = spec.layers.len();
    let mut attends = vec![false; n_layers];
    let list = cfg.field("attn_layer_indices");
    if let Some(items) = list.non_null().and_then(Field::value) {
        let expected = || list.error(format!("a list of layers below {n_layers}"));
        for item in items.as_array().ok_or_else(expected)? {
            let layer = Field::new("attn_layer_indices", Some(item)).integer(0, n_layers - 1)?;
            attends[layer] = true;
        }
    }
    for (layer, attends) in spec.layers.iter_mut().zip(attends) {
        if !attends {
            ssm::put(layer, &mamba);
        }
    }
    Ok(spec)
}
