//! OPT (Zhang et al., 2022): layer norms, learned positions from the third row on, ReLU, no gate.

use super::{Arch, ArchSpec, LearnedPositions, NormKind, Part, Preset, Stored, llama};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["OPTForCausalLM"],
    model_types: &["opt"],
    spellings: &[("intermediate_size", "ffn_dim"), ("hidden_act", "activation_function")],
    defaults: &[
        ("tie_word_embeddings", Preset::Flag(true)),
        ("hidden_act", Preset::Text("relu")),
        ("rms_norm_eps", Preset::Number(1e-5)),
    ],
    hf: HF,
    spec,
    ..Arch::PLAIN
};

/// Rows of the table of positions before that of position 0.
const FIRST_ROW: usize = 2;

const HF: Stored = Stored {
    prefix: "model.decoder.",
    names: &[
        (Part::FinalNorm, "final_layer_norm"),
        (Part::AttentionNorm, "self_attn_layer_norm"),
        (Part::O, "self_attn.out_proj"),
        (Part::MlpNorm, "final_layer_norm"),
        (Part::Up, "fc1"),
        (Part::Down, "fc2"),
    ],
    ..Stored::HF
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    cfg.expect_flag("do_layer_norm_before", true)?;
    cfg.expect_flag("_remove_final_layer_norm", false)?;
    cfg.expect_flag("layer_norm_elementwise_affine", true)?;
    let embedding_dim = cfg.field("word_embed_proj_dim");
    if embedding_dim.value().is_some_and(|n| n.as_u64() != Some(cfg.hidden_size as u64)) {
        let hidden_size = cfg.hidden_size;
        return Err(embedding_dim.error(format!("{hidden_size}, as wide as the layers")));
    }
    let bias = cfg.flag("enable_bias", true)?;
    let mut spec = llama::spec(cfg)?;
    spec.norm = NormKind::Layer { weight: true, bias: true };
    spec.ropes.clear();
    let n_rows = spec.max_context + FIRST_ROW;
    spec.positions = Some(LearnedPositions { n_rows, first_row: FIRST_ROW });
    spec.set_plain_mlp(cfg, bias);
    for layer in &mut spec.layers {
        let gqa = layer.gqa_mut();
        (gqa.qkv_bias, gqa.out_bias, gqa.rope) = (bias, bias, None);
    }
    Ok(spec)
}
