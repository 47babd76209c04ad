//! Mixtral (Jiang et al., 2024): Mistral with eight experts in place of each perceptron.

use super::{Arch, ArchSpec, Part, Preset, Stored, llama};
use crate::config::{HfConfig, Window};
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["MixtralForCausalLM"],
    model_types: &["mixtral"],
    // Converters write these checkpoints as `llama`; the number of experts gives them away.
    gguf_names: &["mixtral"],
    defaults: &[
        ("num_experts", Preset::Number(8.0)),
        ("num_experts_per_tok", Preset::Number(2.0)),
        ("norm_topk_prob", Preset::Flag(true)),
        ("rms_norm_eps", Preset::Number(1e-5)),
    ],
    hf: Stored {
        names: &[
            (Part::Router, "block_sparse_moe.gate"),
            (Part::Router, "mlp.gate"),
            (Part::ExpertGate, "block_sparse_moe.experts.*.w1"),
            (Part::ExpertDown, "block_sparse_moe.experts.*.w2"),
            (Part::ExpertUp, "block_sparse_moe.experts.*.w3"),
        ],
        ..Stored::HF
    },
    gguf: Stored { is_in_pairs: true, ..Stored::GGUF },
    written_as: Some("llama"),
    spec,
    ..Arch::PLAIN
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = llama::spec(cfg)?;
    let moe = cfg.moe()?;
    spec.set_moe(&moe, |_| true);
    for layer in &mut spec.layers {
        layer.gqa_mut().window = match cfg.sliding_window {
            Window::Tokens(n) => Some(n),
            Window::Absent | Window::Off => None,
        };
    }
    Ok(spec)
}
