//! GPT-NeoX and Pythia (Black et al., 2022): layer norms, mixers beside each other with a norm for
//! each, a quarter of each head rotated, no gate.

use super::{Arch, ArchSpec, Fused, NormKind, PARALLEL, Part, Preset, Residual, Stored, llama};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["GPTNeoXForCausalLM"],
    model_types: &["gpt_neox"],
    gguf_names: &["gptneox"],
    spellings: &[
        ("rms_norm_eps", "layer_norm_eps"),
        ("partial_rotary_factor", "rotary_pct"),
        ("rope_theta", "rotary_emb_base"),
    ],
    defaults: &[
        ("intermediate_size", Preset::TimesHidden(4)),
        ("hidden_act", Preset::Text("gelu")),
        ("rms_norm_eps", Preset::Number(1e-5)),
        ("partial_rotary_factor", Preset::Number(0.25)),
        ("attention_bias", Preset::Flag(true)),
        (PARALLEL, Preset::Flag(true)),
    ],
    partial_rotary: true,
    hf: HF,
    gguf: Stored { qkv: Fused::Stacked, ..Stored::GGUF },
    spec,
    written_as: Some("gptneox"),
    ..Arch::PLAIN
};

const HF: Stored = Stored {
    prefix: "gpt_neox.",
    names: &[
        (Part::Embedding, "embed_in"),
        (Part::FinalNorm, "final_layer_norm"),
        (Part::Head, "embed_out"),
        (Part::Head, "lm_head"),
        (Part::Qkv, "attention.query_key_value"),
        (Part::O, "attention.dense"),
        (Part::Up, "mlp.dense_h_to_4h"),
        (Part::Down, "mlp.dense_4h_to_h"),
    ],
    qkv: Fused::Grouped,
    ..Stored::HF
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = llama::spec(cfg)?;
    spec.norm = NormKind::Layer { weight: true, bias: true };
    spec.set_plain_mlp(cfg, true);
    let is_parallel = cfg.flag(PARALLEL, true)?;
    for layer in &mut spec.layers {
        if is_parallel {
            layer.wiring.residual = Residual::ParallelTwoNorms;
        }
    }
    Ok(spec)
}
