//! Qwen1.5-MoE and Qwen2-MoE (Yang et al., 2024): Qwen2 with experts, and a shared one behind a
//! sigmoid.

use super::{Arch, ArchSpec, GatedMlp, Part, Preset, SharedExpert, Stored, qwen2};
use crate::config::HfConfig;
use crate::fields::{ConfigError, Field};
use pelton_base::limits;

pub(super) const ARCH: Arch = Arch {
    names: &["Qwen2MoeForCausalLM"],
    model_types: &["qwen2_moe"],
    gguf_names: &["qwen2moe"],
    defaults: DEFAULTS,
    hf: Stored {
        names: &[
            (Part::SharedGate, "mlp.shared_expert.gate_proj"),
            (Part::SharedUp, "mlp.shared_expert.up_proj"),
            (Part::SharedDown, "mlp.shared_expert.down_proj"),
        ],
        ..Stored::HF
    },
    written_as: Some("qwen2moe"),
    spec,
    ..Arch::PLAIN
};

pub(super) const DEFAULTS: &[(&str, Preset)] =
    &[("decoder_sparse_step", Preset::Number(1.0)), ("norm_topk_prob", Preset::Flag(false))];

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = qwen2::spec(cfg)?;
    let mut moe = cfg.moe()?;
    let intermediate_size = cfg.width("shared_expert_intermediate_size")?;
    let mlp = GatedMlp { intermediate_size, ..moe.expert.clone() };
    moe.shared = Some(SharedExpert { mlp, is_gated: true });
    let is_sparse = sparse_layers(cfg)?;
    spec.set_moe(&moe, |layer| is_sparse[layer]);
    Ok(spec)
}

/// The layers with experts: every `decoder_sparse_step`-th, except those in `mlp_only_layers`.
pub(super) fn sparse_layers(cfg: &HfConfig) -> Result<Vec<bool>, ConfigError> {
    let step = cfg.field("decoder_sparse_step").count(limits::MODEL_LAYERS)?;
    let n_layers = cfg.num_hidden_layers;
    let mut is_sparse: Vec<bool> = (1..=n_layers).map(|i| i.is_multiple_of(step)).collect();
    take_out_dense(cfg, &mut is_sparse)?;
    Ok(is_sparse)
}

/// Takes the layers that `mlp_only_layers` lists out of those with experts.
pub(super) fn take_out_dense(cfg: &HfConfig, is_sparse: &mut [bool]) -> Result<(), ConfigError> {
    let n_layers = is_sparse.len();
    let list = cfg.field("mlp_only_layers");
    let Some(items) = list.value() else { return Ok(()) };
    let expected = || list.error(format!("a list of layers below {n_layers}"));
    for item in items.as_array().ok_or_else(expected)? {
        let layer = Field::new("mlp_only_layers", Some(item)).integer(0, n_layers - 1)?;
        is_sparse[layer] = false;
    }
    Ok(())
}
