//! GPT-J (Wang and Komatsuzaki, 2021): mixers beside each other behind one layer norm, the first
//! elements of each head rotated in pairs of neighbours, a bias on the head.

use super::{Arch, ArchSpec, NormKind, Part, Preset, Residual, Stored, gpt2, llama};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["GPTJForCausalLM"],
    model_types: &["gptj"],
    gguf_names: &["gptj"],
    spellings: gpt2::SPELLINGS,
    defaults: &[
        ("intermediate_size", Preset::TimesHidden(4)),
        ("hidden_act", Preset::Text("gelu_new")),
        ("rms_norm_eps", Preset::Number(1e-5)),
        ("rotary_dim", Preset::Number(64.0)),
    ],
    partial_rotary: true,
    hf: HF,
    gguf: Stored { is_in_pairs: true, ..Stored::GGUF },
    spec,
    written_as: Some("gptj"),
    ..Arch::PLAIN
};

const HF: Stored = Stored {
    prefix: "transformer.",
    layers: "h",
    names: &[
        (Part::Embedding, "wte"),
        (Part::FinalNorm, "ln_f"),
        (Part::AttentionNorm, "ln_1"),
        (Part::Q, "attn.q_proj"),
        (Part::K, "attn.k_proj"),
        (Part::V, "attn.v_proj"),
        (Part::O, "attn.out_proj"),
        (Part::Up, "mlp.fc_in"),
        (Part::Down, "mlp.fc_out"),
    ],
    is_in_pairs: true,
    ..Stored::HF
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = llama::spec(cfg)?;
    spec.norm = NormKind::Layer { weight: true, bias: true };
    spec.head_bias = true;
    spec.set_plain_mlp(cfg, true);
    let rotary_dim = cfg.field("rotary_dim");
    let n_rotated = rotary_dim.count(cfg.head_dim)?;
    if !n_rotated.is_multiple_of(2) {
        return Err(rotary_dim.error("an even number"));
    }
    spec.ropes[0].rotary_dim = n_rotated;
    for layer in &mut spec.layers {
        layer.wiring.residual = Residual::ParallelOneNorm;
        let gqa = layer.gqa_mut();
        (gqa.qkv_bias, gqa.out_bias) = (false, false);
    }
    Ok(spec)
}
