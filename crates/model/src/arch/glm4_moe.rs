//! GLM-4.5 and 4.6 (Z.ai, 2025): the experts of DeepSeek V3 behind ordinary attention, half of each
//! head rotated. The layer that guesses a second token is left alone.

use super::{
    Arch, ArchSpec, GatedMlp, GroupRank, Part, Preset, QkNorm, RouterScore, SharedExpert, Stored,
    llama,
};
use crate::config::HfConfig;
use crate::fields::ConfigError;
use pelton_base::limits;

pub(super) const ARCH: Arch = Arch {
    names: &["Glm4MoeForCausalLM"],
    model_types: &["glm4_moe"],
    gguf_names: &["glm4moe"],
    defaults: &[
        ("partial_rotary_factor", Preset::Number(0.5)),
        ("rms_norm_eps", Preset::Number(1e-5)),
        ("norm_topk_prob", Preset::Flag(true)),
        ("first_k_dense_replace", Preset::Number(1.0)),
        ("n_shared_experts", Preset::Number(1.0)),
        ("routed_scaling_factor", Preset::Number(1.0)),
    ],
    partial_rotary: true,
    gguf: Stored { names: &[(Part::MlpNorm, "post_attention_norm")], ..Stored::GGUF },
    written_as: Some("glm4moe"),
    spec,
    ..Arch::PLAIN
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = llama::spec(cfg)?;
    let has_norm = cfg.flag("use_qk_norm", false)?;
    for layer in &mut spec.layers {
        let gqa = layer.gqa_mut();
        (gqa.out_bias, gqa.qk_norm) = (false, has_norm.then_some(QkNorm::HeadRms));
    }
    let mut moe = cfg.moe()?;
    let scores = cfg.field("expert_gating_func");
    if scores.non_null().is_some_and(|kind| !matches!(kind.integer(0, 16), Ok(0 | 2))) {
        return Err(scores.error("2 (sigmoid)"));
    }
    moe.router.score = RouterScore::Sigmoid;
    moe.router.scale = cfg.number("routed_scaling_factor", 1.0, [1e-6, 1e6])?;
    moe.router.groups = cfg.expert_groups(&moe, GroupRank::TwoBest)?;
    moe.has_correction = true;
    let shared = cfg.field("n_shared_experts");
    let width = moe.expert.intermediate_size;
    let n_shared = shared.integer(0, limits::MODEL_WIDTH / width)?;
    let mlp = GatedMlp { intermediate_size: n_shared * width, ..moe.expert.clone() };
    moe.shared = (n_shared > 0).then_some(SharedExpert { mlp, is_gated: false });
    let n_dense = cfg.field("first_k_dense_replace").integer(0, limits::MODEL_LAYERS)?;
    spec.set_moe(&moe, |layer| layer >= n_dense);
    Ok(spec)
}
