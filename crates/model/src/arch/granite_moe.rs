//! Granite MoE (Granite Team, 2024): Granite with experts, and in some a shared one.

use pelton_base::limits;

use super::{Arch, ArchSpec, GatedMlp, Part, RouterScore, SharedExpert, Stored, granite};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"],
    model_types: &["granitemoe", "granitemoeshared"],
    gguf_names: &["granitemoe"],
    hf: Stored {
        names: &[
            (Part::Router, "block_sparse_moe.router.layer"),
            (Part::ExpertGateUp, "block_sparse_moe.input_linear"),
            (Part::ExpertDown, "block_sparse_moe.output_linear"),
            (Part::ExpertDown, "block_sparse_moe.experts.*.down_proj"),
            (Part::ExpertGate, "block_sparse_moe.experts.*.gate_proj"),
            (Part::ExpertUp, "block_sparse_moe.experts.*.up_proj"),
            (Part::SharedGateUp, "shared_mlp.input_linear"),
            (Part::SharedDown, "shared_mlp.output_linear"),
        ],
        ..Stored::HF
    },
    gguf: Stored { is_in_pairs: true, ..Stored::GGUF },
    written_as: Some("granitemoe"),
    spec,
    ..Arch::PLAIN
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = granite::spec(cfg)?;
    let mut moe = cfg.moe()?;
    moe.router.score = RouterScore::SoftmaxOfChosen;
    if let Some(width) = cfg.field("shared_intermediate_size").non_null() {
        let intermediate_size = width.integer(0, limits::MODEL_WIDTH)?;
        let mlp = GatedMlp { intermediate_size, ..moe.expert.clone() };
        moe.shared = (intermediate_size > 0).then_some(SharedExpert { mlp, is_gated: false });
    }
    spec.set_moe(&moe, |_| true);
    Ok(spec)
}
