//! Granite 4 (Granite Team, 2025): Granite with Mamba 2 in most layers, with experts or without.

use super::{
    Arch, ArchSpec, GatedMlp, Mlp, Part, Preset, RouterScore, SharedExpert, Stored, granite, ssm,
};
use crate::config::HfConfig;
use crate::fields::ConfigError;
use pelton_base::limits;

const NAMES: &[(Part, &str)] = ssm::names![
    "mamba",
    (Part::Router, "block_sparse_moe.router.layer"),
    (Part::ExpertGateUp, "block_sparse_moe.input_linear"),
    (Part::ExpertDown, "block_sparse_moe.output_linear"),
    (Part::ExpertDown, "block_sparse_moe.experts.*.down_proj"),
    (Part::ExpertGate, "block_sparse_moe.experts.*.gate_proj"),
    (Part::ExpertUp, "block_sparse_moe.experts.*.up_proj"),
    (Part::SharedGateUp, "shared_mlp.input_linear"),
    (Part::SharedDown, "shared_mlp.output_linear"),
    (Part::GateUp, "shared_mlp.input_linear"),
    (Part::Down, "shared_mlp.output_linear"),
];

pub(super) const ARCH: Arch = Arch {
    names: &["GraniteMoeHybridForCausalLM"],
    model_types: &["granitemoehybrid"],
    gguf_names: &["granitehybrid"],
    written_as: Some("granitehybrid"),
    spellings: &[("layer_types", "layers_block_type")],
    defaults: &[
        ("mamba_n_heads", Preset::Number(128.0)),
        ("mamba_d_state", Preset::Number(256.0)),
        ("shared_intermediate_size", Preset::Number(1024.0)),
    ],
    layer_kinds: ssm::KINDS,
    hf: Stored { names: NAMES, is_gate_up_fused: true, ..Stored::HF },
    gguf: Stored { is_in_pairs: true, decays_are_rates: true, ..Stored::GGUF },
    spec,
    ..Arch::PLAIN
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = granite::spec(cfg)?;
    let shared = cfg.field("shared_intermediate_size").count(limits::MODEL_WIDTH)?;
    let (intermediate_size, act) = (shared, cfg.hidden_act);
    let mlp = GatedMlp { intermediate_size, act, bias: false, cut: None };
    let experts = cfg.field("num_local_experts");
    let n_experts = experts.non_null().map_or(Ok(0), |n| n.integer(0, limits::MODEL_WIDTH))?;
    let moe = match n_experts {
        0 => None,
        _ => {
            let mut moe = cfg.moe()?;
            moe.router.score = RouterScore::SoftmaxOfChosen;
            moe.shared = Some(SharedExpert { mlp: mlp.clone(), is_gated: false });
            Some(moe)
        }
    };
    let has_rope = cfg.field("position_embedding_type").text()? == Some("rope");
    let (mamba, kinds) = (ssm::read(cfg)?, cfg.layer_kinds()?);
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        layer.mlp = moe.clone().map_or(Mlp::Gated(mlp.clone()), Mlp::Moe);
        if !has_rope {
            layer.gqa_mut().rope = None;
        }
        if !kinds.as_ref().is_some_and(|kinds| ssm::attends(kinds[i])) {
            ssm::put(layer, &mamba);
        }
    }
    if !has_rope {
        spec.ropes.clear();
    }
    Ok(spec)
}
