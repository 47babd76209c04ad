//! DeepSeek V2, V2 Lite, V3 and R1 (DeepSeek-AI, 2024), and Kimi K2, which is V3 with other
//! numbers: latent attention, and after some dense layers mixtures of experts.
//!
//! ```text
//!            scores     ranked by             groups ranked by      weights
//! V2 Lite    softmax    score                 none                  score · factor
//! V2         softmax    score                 best expert           score · factor
//! V3         sigmoid    score + correction    two best experts      score / sum · factor
//! ```
//!
//! The modules of V3 that predict further tokens are not loaded.

use pelton_base::limits;

use super::{
    Arch, ArchSpec, GatedMlp, GroupRank, Mixer, Mla, Moe, Part, Preset, RouterScore, SharedExpert,
    Stored, llama,
};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const V2: Arch = Arch {
    names: &["DeepseekV2ForCausalLM"],
    model_types: &["deepseek_v2"],
    // V3 as well: its files differ in what they say of experts.
    gguf_names: &["deepseek2"],
    spellings: &[HEAD_DIM, ("num_experts", "n_routed_experts")],
    defaults: &[("topk_method", Preset::Text("greedy")), ("scoring_func", Preset::Text("softmax"))],
    hf: HF,
    gguf: GGUF,
    written_as: Some("deepseek2"),
    spec,
    ..Arch::PLAIN
};

pub(super) const V3: Arch = Arch {
    names: &["DeepseekV3ForCausalLM"],
    model_types: &["deepseek_v3", "kimi_k2"],
    gguf_names: &[],
    defaults: &[
        ("topk_method", Preset::Text("noaux_tc")),
        ("scoring_func", Preset::Text("sigmoid")),
        ("norm_topk_prob", Preset::Flag(true)),
        ("routed_scaling_factor", Preset::Number(2.5)),
    ],
    ..V2
};

/// The field that holds the rotated width.
pub(super) const HEAD_DIM: (&str, &str) = ("head_dim", "qk_rope_head_dim");

pub(super) const HF: Stored = Stored {
    names: &[(Part::QNorm, "self_attn.q_a_layernorm"), (Part::KNorm, "self_attn.kv_a_layernorm")],
    ..Stored::HF
};

pub(super) const GGUF: Stored = Stored {
    names: &[(Part::QNorm, "attn_q_a_norm"), (Part::KNorm, "attn_kv_a_norm")],
    ..Stored::GGUF
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = llama::spec(cfg)?;
    let mla = Mla::read(cfg, cfg.flag("rope_interleave", true)?)?;
    for layer in &mut spec.layers {
        layer.mixer = Mixer::Mla(mla.clone());
    }
    let number = |name: &str, default: usize, min: usize, max: usize| {
        let field = cfg.field(name);
        field.non_null().map_or(Ok(default), |field| field.integer(min, max))
    };
    let n_dense = number("first_k_dense_replace", 0, 0, limits::MODEL_LAYERS)?;
    let step = number("moe_layer_freq", 1, 1, limits::MODEL_LAYERS)?;
    let has_experts = |layer: usize| layer >= n_dense && layer.is_multiple_of(step);
    let is_mixed = cfg.field("num_experts").non_null().is_some();
    if is_mixed && (0..spec.layers.len()).any(has_experts) {
        spec.set_moe(&moe(cfg)?, has_experts);
    }
    Ok(spec)
}

pub(super) fn moe(cfg: &HfConfig) -> Result<Moe, ConfigError> {
    let mut moe = cfg.moe()?;
    let scoring = cfg.field("scoring_func");
    moe.router.score = match scoring.text()? {
        Some("sigmoid") => RouterScore::Sigmoid,
        Some("softmax") => RouterScore::Softmax,
        _ => return Err(scoring.error("one of \"softmax\", \"sigmoid\"")),
    };
    let method = cfg.field("topk_method");
    let rank = match method.text()? {
        Some("greedy") => None,
        Some("group_limited_greedy") => Some(GroupRank::Best),
        Some("noaux_tc") => Some(GroupRank::TwoBest),
        _ => {
            let expected = "one of \"greedy\", \"group_limited_greedy\", \"noaux_tc\"";
            return Err(method.error(expected));
        }
    };
    if let Some(rank) = rank {
        moe.router.groups = cfg.expert_groups(&moe, rank)?;
    }
    moe.has_correction = rank == Some(GroupRank::TwoBest);
    moe.router.scale = cfg.number("routed_scaling_factor", 1.0, [1e-6, 1e6])?;
    let shared = cfg.field("n_shared_experts");
    let n_shared = shared.non_null().map_or(Ok(0), |n| n.integer(0, limits::MODEL_WIDTH))?;
    if n_shared > 0 {
        let intermediate_size = n_shared.saturating_mul(moe.expert.intermediate_size);
        if intermediate_size > limits::MODEL_WIDTH {
            return Err(shared.error(format!("at most {} elements", limits::MODEL_WIDTH)));
        }
        let mlp = GatedMlp { intermediate_size, ..moe.expert.clone() };
        moe.shared = Some(SharedExpert { mlp, is_gated: false });
    }
    Ok(moe)
}
