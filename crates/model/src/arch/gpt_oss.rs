//! GPT-OSS (OpenAI, 2025): windows in every second layer, sinks in every head, and experts with
//! bounded gates, in four bits.

use super::{Act, Arch, ArchSpec, Experts, GateUp, Part, Preset, RouterScore, Stored, llama};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["GptOssForCausalLM"],
    model_types: &["gpt_oss"],
    gguf_names: &["gpt-oss"],
    defaults: &[
        ("rms_norm_eps", Preset::Number(1e-5)),
        ("attention_bias", Preset::Flag(true)),
        ("num_experts_per_tok", Preset::Number(4.0)),
        ("swiglu_limit", Preset::Number(7.0)),
        ("sliding_window", Preset::Number(128.0)),
        // GGUF files do not say so.
        ("yarn_truncate", Preset::Flag(false)),
    ],
    hf: Stored {
        names: &[(Part::Router, "mlp.router"), (Part::ExpertDown, "mlp.experts.*.down_proj")],
        experts: Experts { gate_up: GateUp::Interleaved, is_transposed: true },
        ..Stored::HF
    },
    // Converters have put gate and up apart.
    gguf: Stored {
        names: &[(Part::MlpNorm, "post_attention_norm"), (Part::MlpNorm, "ffn_norm")],
        ..Stored::GGUF
    },
    written_as: Some("gpt-oss"),
    spec,
    ..Arch::PLAIN
};

/// Factor in the sigmoid of the gates.
const ALPHA: f64 = 1.702;

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = llama::spec(cfg)?;
    spec.set_windows(cfg, |layer| layer % 2 == 0);
    let mut moe = cfg.moe()?;
    moe.router.score = RouterScore::SoftmaxOfChosen;
    moe.router_bias = true;
    moe.expert.bias = true;
    // `x · sigmoid(1.702 x)`, whatever the config calls it.
    moe.expert.act = Act::QuickGelu;
    if (cfg.number("swiglu_alpha", ALPHA, [0.0, 1e3])? - ALPHA as f32).abs() > 1e-6 {
        return Err(cfg.field("swiglu_alpha").error(format!("{ALPHA}, all that is supported")));
    }
    moe.limit = Some(cfg.number("swiglu_limit", 7.0, [1e-3, 1e6])?);
    spec.set_moe(&moe, |_| true);
    for layer in &mut spec.layers {
        layer.gqa_mut().has_sinks = true;
    }
    Ok(spec)
}
