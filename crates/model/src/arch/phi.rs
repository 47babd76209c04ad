//! Phi-1, 1.5 and 2 (Li et al., 2023): mixers beside each other behind one layer norm, a part of
//! each head rotated, biases everywhere, on the head too.

use super::{Arch, ArchSpec, Fused, NormKind, Part, Preset, Residual, Stored, llama};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["PhiForCausalLM"],
    model_types: &["phi"],
    gguf_names: &["phi2"],
    spellings: &[("rms_norm_eps", "layer_norm_eps")],
    defaults: &[
        ("hidden_act", Preset::Text("gelu_new")),
        ("rms_norm_eps", Preset::Number(1e-5)),
        ("partial_rotary_factor", Preset::Number(0.5)),
    ],
    partial_rotary: true,
    hf: HF,
    gguf: Stored { qkv: Fused::Stacked, ..Stored::GGUF },
    spec,
    ..Arch::PLAIN
};

const HF: Stored = Stored {
    names: &[
        (Part::FinalNorm, "final_layernorm"),
        (Part::O, "self_attn.dense"),
        (Part::Up, "mlp.fc1"),
        (Part::Down, "mlp.fc2"),
    ],
    ..Stored::HF
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    cfg.expect_flag("qk_layernorm", false)?;
    let mut spec = llama::spec(cfg)?;
    spec.norm = NormKind::Layer { weight: true, bias: true };
    spec.head_bias = true;
    spec.set_plain_mlp(cfg, true);
    for layer in &mut spec.layers {
        layer.wiring.residual = Residual::ParallelOneNorm;
        let gqa = layer.gqa_mut();
        (gqa.qkv_bias, gqa.out_bias) = (true, true);
    }
    Ok(spec)
}
