//! LFM2 (Liquid AI, 2025): short gated convolutions in most layers, attention with normed q and k in the
//! rest; perceptrons, or experts behind a sigmoid router.

use super::{
    Arch, ArchSpec, Mixer, Mlp, Part, Preset, QkNorm, RouterScore, ShortConv, Stored, llama,
};
use crate::config::HfConfig;
use crate::fields::{ConfigError, Field};
use pelton_base::limits;

pub(super) const ARCH: Arch = Arch {
    names: &["Lfm2ForCausalLM"],
    model_types: &["lfm2"],
    gguf_names: &["lfm2"],
    written_as: Some("lfm2"),
    spellings: &[
        ("rms_norm_eps", "norm_eps"),
        ("tie_word_embeddings", "tie_embedding"),
        ("intermediate_size", "block_ff_dim"),
    ],
    defaults: &[
        ("rms_norm_eps", Preset::Number(1e-5)),
        ("tie_word_embeddings", Preset::Flag(true)),
        ("rope_theta", Preset::Number(1e6)),
        ("conv_L_cache", Preset::Number(3.0)),
        ("intermediate_size", Preset::Number(12_288.0)),
    ],
    layer_kinds: &["conv"],
    hf: Stored {
        names: &[
            (Part::AttentionNorm, "operator_norm"),
            (Part::MlpNorm, "ffn_norm"),
            (Part::FinalNorm, "embedding_norm"),
            (Part::O, "self_attn.out_proj"),
            (Part::QNorm, "self_attn.q_layernorm"),
            (Part::KNorm, "self_attn.k_layernorm"),
            (Part::Conv, "conv.conv"),
            (Part::Gate, "feed_forward.w1"),
            (Part::Up, "feed_forward.w3"),
            (Part::Down, "feed_forward.w2"),
            (Part::Router, "feed_forward.gate"),
            (Part::RouterCorrection, "feed_forward.expert_bias"),
            (Part::ExpertGate, "feed_forward.experts.*.w1"),
            (Part::ExpertUp, "feed_forward.experts.*.w3"),
            (Part::ExpertDown, "feed_forward.experts.*.w2"),
        ],
        ..Stored::HF
    },
    gguf: Stored {
        // The norm after the last layer, in spite of its name.
        names: &[(Part::FinalNorm, "token_embd_norm"), (Part::Conv, "shortconv.conv")],
        ..Stored::GGUF
    },
    spec,
    ..Arch::PLAIN
};

pub(super) const MOE: Arch = Arch {
    names: &["Lfm2MoeForCausalLM"],
    model_types: &["lfm2_moe"],
    gguf_names: &["lfm2moe"],
    written_as: Some("lfm2moe"),
    spellings: &[("rms_norm_eps", "norm_eps"), ("tie_word_embeddings", "tie_embedding")],
    spec: with_experts,
    ..ARCH
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = mixers(cfg)?;
    let width = dense_width(cfg)?;
    for layer in &mut spec.layers {
        if let Mlp::Gated(mlp) = &mut layer.mlp {
            mlp.intermediate_size = width;
        }
    }
    Ok(spec)
}

/// Attention and convolutions.
fn mixers(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = llama::spec(cfg)?;
    let conv = ShortConv {
        channels: cfg.hidden_size,
        taps: cfg.field("conv_L_cache").count(limits::CONV_TAPS)?,
        bias: cfg.flag("conv_bias", false)?,
    };
    let attends = attending_layers(cfg)?;
    for (layer, attends) in spec.layers.iter_mut().zip(attends) {
        layer.gqa_mut().qk_norm = Some(QkNorm::HeadRms);
        if !attends {
            layer.mixer = Mixer::ShortConv(conv.clone());
        }
    }
    Ok(spec)
}

/// The layers with attention: those that `layer_types` names, or `full_attn_idxs`, or all.
fn attending_layers(cfg: &HfConfig) -> Result<Vec<bool>, ConfigError> {
    if let Some(kinds) = cfg.layer_kinds()? {
        return Ok(kinds.iter().map(|kind| *kind == "full_attention").collect());
    }
    let n_layers = cfg.num_hidden_layers;
    let list = cfg.field("full_attn_idxs");
    let Some(items) = list.non_null().and_then(Field::value) else {
        return Ok(vec![true; n_layers]);
    };
    let mut attends = vec![false; n_layers];
    let expected = || list.error(format!("a list of layers below {n_layers}"));
    for item in items.as_array().ok_or_else(expected)? {
        attends[Field::new("full_attn_idxs", Some(item)).integer(0, n_layers - 1)?] = true;
    }
    Ok(attends)
}

/// The width of perceptrons: two thirds of what the config says, rounded up to whole multiples, unless it
/// says otherwise.
fn dense_width(cfg: &HfConfig) -> Result<usize, ConfigError> {
    if !cfg.flag("block_auto_adjust_ff_dim", true)? {
        return Ok(cfg.intermediate_size);
    }
    let factor = f64::from(cfg.number("block_ffn_dim_multiplier", 1.0, [1e-3, 1e3])?);
    let multiple = cfg.field("block_multiple_of");
    let multiple = multiple.non_null().map_or(Ok(256), |field| field.count(limits::MODEL_WIDTH))?;
    let width = ((2 * cfg.intermediate_size / 3) as f64 * factor) as usize;
    Ok(width.max(1).next_multiple_of(multiple).min(limits::MODEL_WIDTH))
}

fn with_experts(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = mixers(cfg)?;
    let mut moe = cfg.moe()?;
    moe.router.score = RouterScore::Sigmoid;
    moe.router.renormalized = cfg.flag("norm_topk_prob", true)?;
    moe.router.scale = cfg.number("routed_scaling_factor", 1.0, [1e-6, 1e6])?;
    moe.has_correction = cfg.flag("use_expert_bias", true)?;
    let dense = cfg.field("num_dense_layers");
    let n_dense = dense.non_null().map_or(Ok(2), |field| field.integer(0, limits::MODEL_LAYERS))?;
    spec.set_moe(&moe, |layer| layer >= n_dense);
    Ok(spec)
}
