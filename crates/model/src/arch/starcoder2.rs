//! StarCoder 2 (Lozhkov et al., 2024): layer norms, biases everywhere, no gate, a window.

use super::{Arch, ArchSpec, NormKind, Part, Preset, Stored, llama};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["Starcoder2ForCausalLM"],
    model_types: &["starcoder2"],
    gguf_names: &["starcoder2"],
    spellings: &[("rms_norm_eps", "norm_epsilon")],
    defaults: &[
        ("tie_word_embeddings", Preset::Flag(true)),
        ("hidden_act", Preset::Text("gelu_pytorch_tanh")),
        ("rms_norm_eps", Preset::Number(1e-5)),
    ],
    hf: HF,
    spec,
    written_as: Some("starcoder2"),
    ..Arch::PLAIN
};

const HF: Stored =
    Stored { names: &[(Part::Up, "mlp.c_fc"), (Part::Down, "mlp.c_proj")], ..Stored::HF };

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = llama::spec(cfg)?;
    spec.norm = NormKind::Layer { weight: true, bias: true };
    let bias = cfg.flag("use_bias", true)?;
    spec.set_plain_mlp(cfg, bias);
    spec.set_windows(cfg, |_| true);
    for layer in &mut spec.layers {
        let gqa = layer.gqa_mut();
        (gqa.qkv_bias, gqa.out_bias) = (bias, bias);
    }
    Ok(spec)
}
