//! T5 (Raffel et al., 2020) and its relatives Flan-T5 and mT5: an encoder and a decoder without positions, whose scores have learned biases by distance.

use super::{
    Arch, ArchSpec, EncoderSpec, GatedMlp, Gqa, Halves, LayerSpec, Mixer, Mlp, Part, PlainMlp,
    Preset, RelativeBias, Stored, crossed, llama,
};
use crate::config::HfConfig;
use crate::fields::{ConfigError, Field};
use pelton_base::{Act, TokenId, limits};

/// Longest source, and most tokens of an answer: distances have no end, so it is what is served by
/// default and no bound of the model.
const CONTEXT: usize = 4096;

/// Most buckets of distances, and the farthest distance, that a config may ask for.
const MOST_DISTANCES: usize = 1 << 16;

const ENCODER: Stored = Stored {
    prefix: "",
    layers: "encoder.block",
    names: &[
        (Part::FinalNorm, "encoder.final_layer_norm"),
        (Part::AttentionNorm, "layer.0.layer_norm"),
        (Part::Q, "layer.0.SelfAttention.q"),
        (Part::K, "layer.0.SelfAttention.k"),
        (Part::V, "layer.0.SelfAttention.v"),
        (Part::O, "layer.0.SelfAttention.o"),
        (Part::DistanceBias, "layer.0.SelfAttention.relative_attention_bias"),
        (Part::MlpNorm, "layer.1.layer_norm"),
        (Part::Gate, "layer.1.DenseReluDense.wi_0"),
        (Part::Up, "layer.1.DenseReluDense.wi"),
        (Part::Up, "layer.1.DenseReluDense.wi_1"),
        (Part::Down, "layer.1.DenseReluDense.wo"),
    ],
    ..Stored::HF
};

const DECODER: Stored = Stored {
    prefix: "",
    layers: "decoder.block",
    names: &[
        (Part::Embedding, "shared"),
        (Part::Embedding, "decoder.embed_tokens"),
        (Part::FinalNorm, "decoder.final_layer_norm"),
        (Part::AttentionNorm, "layer.0.layer_norm"),
        (Part::Q, "layer.0.SelfAttention.q"),
        (Part::K, "layer.0.SelfAttention.k"),
        (Part::V, "layer.0.SelfAttention.v"),
        (Part::O, "layer.0.SelfAttention.o"),
        (Part::DistanceBias, "layer.0.SelfAttention.relative_attention_bias"),
        (Part::CrossQ, "layer.1.EncDecAttention.q"),
        (Part::CrossK, "layer.1.EncDecAttention.k"),
        (Part::CrossV, "layer.1.EncDecAttention.v"),
        (Part::CrossO, "layer.1.EncDecAttention.o"),
        (Part::MlpNorm, "layer.2.layer_norm"),
        (Part::Gate, "layer.2.DenseReluDense.wi_0"),
        (Part::Up, "layer.2.DenseReluDense.wi"),
        (Part::Up, "layer.2.DenseReluDense.wi_1"),
        (Part::Down, "layer.2.DenseReluDense.wo"),
    ],
    halves: Some(Halves {
        second: &[(Part::AttentionNorm, "layer.1.layer_norm")],
        begin: ["layer.0.", "layer."],
    }),
    encoder: Some(&ENCODER),
    ..Stored::HF
};

const GGUF_ENCODER: Stored = Stored {
    layers: "enc.blk",
    names: &[(Part::FinalNorm, "enc.output_norm"), (Part::O, "attn_o")],
    ..Stored::GGUF
};

const GGUF_DECODER: Stored = Stored {
    layers: "dec.blk",
    names: &[(Part::FinalNorm, "dec.output_norm"), (Part::O, "attn_o")],
    halves: Some(Halves {
        second: &[(Part::AttentionNorm, "cross_attn_norm")],
        begin: ["attn_", ""],
    }),
    encoder: Some(&GGUF_ENCODER),
    ..Stored::GGUF
};

pub(super) const ARCH: Arch = Arch {
    names: &["T5ForConditionalGeneration", "T5WithLMHeadModel"],
    model_types: &["t5"],
    gguf_names: &["t5"],
    spellings: &[
        ("hidden_size", "d_model"),
        ("intermediate_size", "d_ff"),
        ("num_hidden_layers", "num_layers"),
        ("num_attention_heads", "num_heads"),
        ("head_dim", "d_kv"),
        ("rms_norm_eps", "layer_norm_epsilon"),
        ("max_position_embeddings", "n_positions"),
    ],
    defaults: &[
        ("hidden_act", Preset::Text("relu")),
        ("rms_norm_eps", Preset::Number(1e-6)),
        ("max_position_embeddings", Preset::Number(512.0)),
        ("tie_word_embeddings", Preset::Flag(true)),
        ("relative_attention_num_buckets", Preset::Number(32.0)),
        ("relative_attention_max_distance", Preset::Number(128.0)),
        ("feed_forward_proj", Preset::Text("relu")),
        ("pad_token_id", Preset::Number(0.0)),
    ],
    hf: DECODER,
    gguf: GGUF_DECODER,
    classifier: None,
    spec,
    ..Arch::PLAIN
};

pub(super) const MT5: Arch = Arch {
    names: &["MT5ForConditionalGeneration"],
    model_types: &["mt5"],
    gguf_names: &[],
    spec: mt5,
    ..ARCH
};

/// The rows that the head reads are never scaled.
fn mt5(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    Ok(ArchSpec { logit_scale: 1.0, ..spec(cfg)? })
}

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = llama::spec(cfg)?;
    let mlp = perceptron(cfg)?;
    let relative = relative_bias(cfg)?;
    let n_layers = match cfg.field("num_decoder_layers").non_null() {
        Some(field) => field.count(limits::MODEL_LAYERS)?,
        None => cfg.num_hidden_layers,
    };
    spec.ropes.clear();
    // Newer configs say it; in older ones it went with a shared head.
    if cfg.flag("scale_decoder_outputs", spec.tied_embeddings)? {
        spec.logit_scale = (cfg.hidden_size as f32).sqrt().recip();
    }
    let template = spec.layers.swap_remove(0);
    let attention = |is_causal| {
        let relative = Some(relative);
        Gqa { scale: 1.0, relative, ..crossed::attention(&template, is_causal) }
    };
    let own = attention(true);
    if own.n_kv_heads != own.n_heads {
        let expected = format!("{}, the number of heads", own.n_heads);
        return Err(cfg.field("num_key_value_heads").error(expected));
    }
    spec.layers = crossed::decoder(n_layers, &own, &mlp, &template);
    let read = LayerSpec { mixer: Mixer::Gqa(attention(false)), mlp, ..template };
    spec.encoder = Some(EncoderSpec {
        layers: vec![read; cfg.num_hidden_layers],
        positions: None,
        final_norm: true,
        max_source: CONTEXT,
        max_own: CONTEXT,
        first_tokens: vec![first_token(cfg)?],
    });
    spec.max_context = 2 * CONTEXT;
    Ok(spec)
}

/// `feed_forward_proj`: an activation, after `gated-` where it is a gate's.
fn perceptron(cfg: &HfConfig) -> Result<Mlp, ConfigError> {
    let field = cfg.field("feed_forward_proj");
    let intermediate_size = cfg.intermediate_size;
    let act = |name| match name {
        "relu" => Some(Act::Relu),
        // T5 v1.1 was trained with the form by tanh.
        "gelu" | "gelu_new" => Some(Act::GeluTanh),
        "silu" => Some(Act::Silu),
        _ => None,
    };
    let name = field.text()?.unwrap_or_default();
    let mlp = match name.strip_prefix("gated-") {
        Some(name) => {
            let of = |act| Mlp::Gated(GatedMlp { intermediate_size, act, bias: false, cut: None });
            act(name).map(of)
        }
        // Without a gate, "gelu" is the form by the error function, which no published model has.
        None => act(name)
            .filter(|_| name != "gelu")
            .map(|act| Mlp::Plain(PlainMlp { intermediate_size, act, bias: false })),
    };
    mlp.ok_or_else(|| field.error("\"relu\", \"gated-gelu\" or \"gated-silu\""))
}

fn relative_bias(cfg: &HfConfig) -> Result<RelativeBias, ConfigError> {
    let buckets = cfg.field("relative_attention_num_buckets");
    let n_buckets = buckets.count(MOST_DISTANCES)?;
    // The encoder has half of them on each side, and half of those are single distances.
    if n_buckets < 4 || !n_buckets.is_multiple_of(4) {
        return Err(buckets.error("a multiple of 4"));
    }
    let farthest = cfg.field("relative_attention_max_distance");
    let max_distance = farthest.count(MOST_DISTANCES)?;
    if max_distance <= n_buckets / 2 {
        return Err(farthest.error(format!("more than {}, half of the buckets", n_buckets / 2)));
    }
    Ok(RelativeBias { n_buckets, max_distance })
}

/// The token that the decoder begins with: that of padding, where the config has no other.
fn first_token(cfg: &HfConfig) -> Result<TokenId, ConfigError> {
    let fields = ["decoder_start_token_id", "pad_token_id"].map(|name| cfg.field(name));
    let field = fields.iter().find_map(Field::non_null).unwrap_or(&fields[1]);
    Ok(TokenId(field.integer(0, cfg.vocab_size - 1)? as u32))
}
