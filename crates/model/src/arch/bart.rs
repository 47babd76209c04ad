//! BART (Lewis et al., 2020) and mBART (Liu et al., 2020): learned positions, layer norms after what is
//! added (BART) or before a mixer (mBART), perceptrons without a gate.

use super::{
    Arch, ArchSpec, EncoderSpec, Gqa, Halves, LayerSpec, LearnedPositions, Mixer, Mlp, NormKind,
    Part, PlainMlp, Preset, Stored, Wiring, crossed, llama,
};
use crate::config::HfConfig;
use crate::fields::{ConfigError, Field};
use pelton_base::{TokenId, limits};

/// Rows of the tables of positions before that of position 0.
const FIRST_ROW: usize = 2;

const BART_ENCODER: Stored = Stored {
    layers: "encoder.layers",
    names: &[
        (Part::Positions, "encoder.embed_positions"),
        (Part::EmbeddingNorm, "encoder.layernorm_embedding"),
        (Part::AttentionPostNorm, "self_attn_layer_norm"),
        (Part::O, "self_attn.out_proj"),
        (Part::Up, "fc1"),
        (Part::Down, "fc2"),
        (Part::MlpPostNorm, "final_layer_norm"),
    ],
    ..Stored::HF
};

const BART_DECODER: Stored = Stored {
    layers: "decoder.layers",
    names: &[
        (Part::Embedding, "shared"),
        (Part::Positions, "decoder.embed_positions"),
        (Part::EmbeddingNorm, "decoder.layernorm_embedding"),
        (Part::AttentionPostNorm, "self_attn_layer_norm"),
        (Part::O, "self_attn.out_proj"),
        (Part::Up, "fc1"),
        (Part::Down, "fc2"),
        (Part::MlpPostNorm, "final_layer_norm"),
    ],
    halves: Some(Halves {
        second: &[(Part::AttentionPostNorm, "encoder_attn_layer_norm")],
        begin: ["self_attn", ""],
    }),
    encoder: Some(&BART_ENCODER),
    logit_bias: Some("final_logits_bias"),
    ..Stored::HF
};

const MBART_ENCODER: Stored = Stored {
    names: &[
        (Part::Positions, "encoder.embed_positions"),
        (Part::EmbeddingNorm, "encoder.layernorm_embedding"),
        (Part::FinalNorm, "encoder.layer_norm"),
        (Part::AttentionNorm, "self_attn_layer_norm"),
        (Part::O, "self_attn.out_proj"),
        (Part::Up, "fc1"),
        (Part::Down, "fc2"),
        (Part::MlpNorm, "final_layer_norm"),
    ],
    ..BART_ENCODER
};

const MBART_DECODER: Stored = Stored {
    names: &[
        (Part::Embedding, "shared"),
        (Part::Positions, "decoder.embed_positions"),
        (Part::EmbeddingNorm, "decoder.layernorm_embedding"),
        (Part::FinalNorm, "decoder.layer_norm"),
        (Part::AttentionNorm, "self_attn_layer_norm"),
        (Part::O, "self_attn.out_proj"),
        (Part::Up, "fc1"),
        (Part::Down, "fc2"),
        (Part::MlpNorm, "final_layer_norm"),
    ],
    halves: Some(Halves {
        second: &[(Part::AttentionNorm, "encoder_attn_layer_norm")],
        begin: ["self_attn", ""],
    }),
    encoder: Some(&MBART_ENCODER),
    ..BART_DECODER
};

pub(super) const ARCH: Arch = Arch {
    names: &["BartForConditionalGeneration"],
    model_types: &["bart"],
    spellings: &[
        ("hidden_size", "d_model"),
        ("intermediate_size", "encoder_ffn_dim"),
        ("num_hidden_layers", "encoder_layers"),
        ("num_attention_heads", "encoder_attention_heads"),
        ("hidden_act", "activation_function"),
    ],
    defaults: &[
        ("hidden_act", Preset::Text("gelu")),
        ("rms_norm_eps", Preset::Number(1e-5)),
        ("max_position_embeddings", Preset::Number(1024.0)),
        ("tie_word_embeddings", Preset::Flag(true)),
        ("decoder_start_token_id", Preset::Number(2.0)),
    ],
    hf: BART_DECODER,
    classifier: None,
    spec: bart,
    ..Arch::PLAIN
};

pub(super) const MBART: Arch = Arch {
    names: &["MBartForConditionalGeneration"],
    model_types: &["mbart"],
    hf: MBART_DECODER,
    spec: mbart,
    ..ARCH
};

fn bart(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    spec(cfg, Wiring::NORMED)
}

fn mbart(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    spec(cfg, Wiring::PRE)
}

/// The spec of both, whose norms are where the wiring says.
fn spec(cfg: &HfConfig, wiring: Wiring) -> Result<ArchSpec, ConfigError> {
    let mut spec = llama::spec(cfg)?;
    let count = |name: &str, usual: usize, most: usize| match cfg.field(name).non_null() {
        Some(field) => field.count(most),
        None => Ok(usual),
    };
    let n_layers = count("decoder_layers", cfg.num_hidden_layers, limits::MODEL_LAYERS)?;
    let decoder_width = count("decoder_ffn_dim", cfg.intermediate_size, limits::MODEL_WIDTH)?;
    let n_heads = cfg.num_attention_heads;
    for name in ["decoder_attention_heads", "num_key_value_heads"] {
        if count(name, n_heads, limits::MODEL_WIDTH)? != n_heads {
            return Err(cfg.field(name).error(format!("{n_heads}, the heads of the encoder")));
        }
    }
    let has_final_norm = wiring.pre_norm;
    spec.norm = NormKind::Layer { weight: true, bias: true };
    spec.ropes.clear();
    spec.embedding_norm = true;
    spec.head_bias = true;
    spec.ends.final_norm = has_final_norm;
    if cfg.flag("scale_embedding", false)? {
        spec.embedding_scale = (cfg.hidden_size as f32).sqrt();
    }
    let n_positions = spec.max_context;
    let positions =
        Some(LearnedPositions { n_rows: n_positions + FIRST_ROW, first_row: FIRST_ROW });
    spec.positions = positions;
    spec.max_context = 2 * n_positions;
    let template = spec.layers.swap_remove(0);
    let template = LayerSpec { wiring, ..template };
    let attention = |is_causal| Gqa {
        qkv_bias: true,
        out_bias: true,
        ..crossed::attention(&template, is_causal)
    };
    let mlp = |intermediate_size| {
        Mlp::Plain(PlainMlp { intermediate_size, act: cfg.hidden_act, bias: true })
    };
    spec.layers = crossed::decoder(n_layers, &attention(true), &mlp(decoder_width), &template);
    let first_tokens = first_tokens(cfg)?;
    if n_positions <= first_tokens.len() {
        let expected = format!("more than {}, the tokens before an answer", first_tokens.len());
        return Err(cfg.field("max_position_embeddings").error(expected));
    }
    let mixer = Mixer::Gqa(attention(false));
    let read = LayerSpec { mixer, mlp: mlp(cfg.intermediate_size), ..template };
    spec.encoder = Some(EncoderSpec {
        layers: vec![read; cfg.num_hidden_layers],
        positions,
        final_norm: has_final_norm,
        max_source: n_positions,
        max_own: n_positions,
        first_tokens,
    });
    Ok(spec)
}

/// The token that the decoder begins with, and the one that must follow it, where the config has one.
fn first_tokens(cfg: &HfConfig) -> Result<Vec<TokenId>, ConfigError> {
    let fields = ["decoder_start_token_id", "forced_bos_token_id"].map(|name| cfg.field(name));
    let token =
        |field: &Field<'_>| field.integer(0, cfg.vocab_size - 1).map(|id| TokenId(id as u32));
    fields.iter().filter_map(|field| field.non_null()).map(token).collect()
}
