//! RWKV-7 "Goose" (Peng et al., 2025): a time mix and a channel mix by turns, without positions.
//!
//! A layer of a file is two layers here, because both of its mixers read the row before and keep
//! it.

use super::{
    Absent, Arch, ArchSpec, ChannelMix, Halves, Mixer, Mlp, NormKind, Part, Preset, Stored,
    TimeMix, llama,
};
use crate::config::HfConfig;
use crate::fields::{ConfigError, Field};
use pelton_base::limits;
use serde_json::Value;

/// Added to the variance in the norm of a head's output, where a file does not say it: the
/// published models were trained so, whatever their heads.
const HEAD_NORM_EPS: f64 = 64e-5;

/// Positions of a model that has none.
const CONTEXT: usize = 1 << 20;

const HF_NAMES: &[(Part, &str)] = &[
    (Part::Embedding, "embeddings"),
    (Part::EmbeddingNorm, "layers.0.pre_norm"),
    (Part::AttentionNorm, "attn_norm"),
    (Part::RecurrentQ, "attn.r_proj"),
    (Part::RecurrentK, "attn.k_proj"),
    (Part::RecurrentV, "attn.v_proj"),
    (Part::RecurrentDecay, "attn.w_lora.lora.0"),
    (Part::DecayUp, "attn.w_lora.lora.2"),
    (Part::DecayBias, "attn.w_lora.lora.2.bias"),
    (Part::RecurrentGate, "attn.g_lora.lora.0"),
    (Part::RecurrentGateUp, "attn.g_lora.lora.2"),
    (Part::GatedNorm, "attn.g_norm"),
    (Part::RecurrentOut, "attn.o_proj"),
    (Part::Up, "ffn.key"),
    (Part::Down, "ffn.value"),
];

const GGUF_NAMES: &[(Part, &str)] = &[
    (Part::RecurrentQ, "time_mix_receptance"),
    (Part::RecurrentK, "time_mix_key"),
    (Part::RecurrentV, "time_mix_value"),
    (Part::RecurrentDecay, "time_mix_w1"),
    (Part::DecayUp, "time_mix_w2"),
    (Part::DecayBias, "time_mix_w0"),
    (Part::RecurrentGate, "time_mix_g1"),
    (Part::RecurrentGateUp, "time_mix_g2"),
    (Part::GatedNorm, "time_mix_ln"),
    (Part::RecurrentOut, "time_mix_output"),
    (Part::Up, "channel_mix_key"),
    (Part::Down, "channel_mix_value"),
];

pub(super) const ARCH: Arch = Arch {
    names: &["RWKV7ForCausalLM"],
    model_types: &["rwkv7"],
    gguf_names: &["rwkv7"],
    written_as: Some("rwkv7"),
    spellings: &[("rms_norm_eps", "norm_eps")],
    defaults: &[
        ("rms_norm_eps", Preset::Number(1e-5)),
        ("hidden_act", Preset::Text("sqrelu")),
        ("intermediate_size", Preset::TimesHidden(4)),
        ("max_position_embeddings", Preset::Number(CONTEXT as f64)),
        // There is no attention.
        ("num_attention_heads", Preset::Number(1.0)),
        ("head_dim", Preset::Number(64.0)),
    ],
    hf: Stored {
        names: HF_NAMES,
        halves: Some(Halves {
            second: &[(Part::AttentionNorm, "ffn_norm")],
            begin: ["attn", "ffn"],
        }),
        ..Stored::HF
    },
    gguf: Stored {
        names: GGUF_NAMES,
        halves: Some(Halves { second: &[(Part::AttentionNorm, "attn_norm_2")], begin: ["", ""] }),
        ..Stored::GGUF
    },
    classifier: None,
    spec,
    ..Arch::PLAIN
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    check(cfg)?;
    let mut spec = llama::spec(cfg)?;
    let mut layers = Vec::new();
    for layer in spec.layers.drain(..) {
        let mixers = [Mixer::TimeMix(time_mix(cfg, layers.is_empty())?), channel_mix(cfg)];
        for mixer in mixers {
            let mut layer = layer.clone();
            (layer.mixer, layer.mlp) = (mixer, Mlp::Absent(Absent));
            layers.push(layer);
        }
    }
    spec.layers = layers;
    spec.norm = NormKind::Layer { weight: true, bias: cfg.flag("norm_bias", true)? };
    spec.embedding_norm = cfg.flag("norm_first", true)?;
    spec.max_context = spec.max_context.max(CONTEXT);
    spec.ropes.clear();
    Ok(spec)
}

/// Refuses what published models do not have.
fn check(cfg: &HfConfig) -> Result<(), ConfigError> {
    if cfg.hidden_act != super::Act::ReluSquared {
        return Err(cfg.field("hidden_act").error("\"sqrelu\", all that is supported"));
    }
    // A width that no config says is four times that of the model.
    let (ratio, is_usual) =
        (cfg.field("hidden_ratio"), cfg.intermediate_size == 4 * cfg.hidden_size);
    if is_usual && ratio.non_null().and_then(Field::value).is_some_and(|n| n.as_f64() != Some(4.0))
    {
        return Err(ratio.error("4, or the width of channel mixes as `intermediate_size`"));
    }
    let attention = cfg.field("attn");
    if attention.non_null().is_some() {
        return Err(attention.error("null: layers with attention are not supported"));
    }
    let values = cfg.field("value_dim");
    let is_hidden = |value: &Value| value.as_u64() == Some(cfg.hidden_size as u64);
    let is_plain = match values.non_null().and_then(|field| field.value()) {
        None => true,
        Some(Value::Array(items)) => items.iter().all(is_hidden),
        Some(value) => is_hidden(value),
    };
    match is_plain {
        true => Ok(()),
        false => Err(values.error(format!("{}, the width of the model", cfg.hidden_size))),
    }
}

fn time_mix(cfg: &HfConfig, is_first: bool) -> Result<TimeMix, ConfigError> {
    let dim = cfg.field("head_dim");
    let head_dim = dim.count(limits::STATE_HEAD_DIM)?;
    if !cfg.hidden_size.is_multiple_of(head_dim) {
        return Err(dim.error(format!("a divisor of the width {}", cfg.hidden_size)));
    }
    let n_heads = cfg.hidden_size / head_dim;
    let said = cfg.field("num_heads");
    if n_heads > limits::STATE_HEADS
        || said.non_null().is_some_and(|n| n.integer(n_heads, n_heads).is_err())
    {
        let (most, width) = (limits::STATE_HEADS, cfg.hidden_size);
        let expected = format!("{width} / head_dim = {n_heads}, at most {most}");
        return Err(said.error(expected));
    }
    let rank = |name: &str| cfg.field(name).count(limits::MODEL_WIDTH);
    let eps = f64::from(cfg.rms_norm_eps) * head_dim as f64;
    Ok(TimeMix {
        n_heads,
        head_dim,
        decay_rank: rank("decay_low_rank_dim")?,
        rate_rank: rank("a_low_rank_dim")?,
        gate_rank: rank("gate_low_rank_dim")?,
        residual_rank: match is_first {
            true => None,
            false => Some(rank("v_low_rank_dim")?),
        },
        norm_eps: match cfg.flag("head_norm_eps_is_fixed", false)? {
            true => HEAD_NORM_EPS as f32,
            false => eps as f32,
        },
    })
}

fn channel_mix(cfg: &HfConfig) -> Mixer {
    let (channels, intermediate_size) = (cfg.hidden_size, cfg.intermediate_size);
    Mixer::ChannelMix(ChannelMix { channels, intermediate_size })
}

#[cfg(test)]
mod tests {
    use crate::arch::{ArchSpec, Mixer};
    use crate::config::parse_config;
    use crate::fields::ConfigError;

    fn spec(more: &str) -> Result<ArchSpec, ConfigError> {
        let text = format!(
            r#"{{{more} "architectures": ["RWKV7ForCausalLM"], "hidden_size": 128,
                "vocab_size": 256, "num_hidden_layers": 2,
                "intermediate_size": null, "decay_low_rank_dim": 8, "a_low_rank_dim": 8,
                "v_low_rank_dim": 4, "gate_low_rank_dim": 16, "max_position_embeddings": 2048}}"#
        );
        let config = parse_config(text.as_bytes())?;
        (super::ARCH.spec)(&config)
    }

    #[test]
    fn a_layer_of_a_file_is_a_time_mix_and_a_channel_mix() {
        let spec = spec(r#""value_dim": [128, 128], "hidden_ratio": 4.0,"#).expect("a spec");
        let kinds: Vec<bool> =
            spec.layers.iter().map(|layer| matches!(layer.mixer, Mixer::TimeMix(_))).collect();
        assert_eq!(kinds, [true, false, true, false]);
        let ranks = |i: usize| match &spec.layers[i].mixer {
            Mixer::TimeMix(mix) => (mix.n_heads, mix.residual_rank, mix.norm_eps),
            other => panic!("{other:?}"),
        };
        assert_eq!([ranks(0), ranks(2)], [(2, None, 64e-5), (2, Some(4), 64e-5)]);
        match &spec.layers[3].mixer {
            Mixer::ChannelMix(mix) => assert_eq!(mix.intermediate_size, 512),
            other => panic!("{other:?}"),
        }
        // Nothing depends on a position, whatever the config says.
        assert!(spec.embedding_norm && spec.max_context > 2048);
    }

    #[test]
    fn configs_that_cannot_be_are_refused_by_the_name_of_the_field() {
        for (name, value) in [
            ("head_dim", "48"),
            ("head_dim", "0"),
            ("num_heads", "3"),
            ("hidden_act", "\"relu\""),
            ("attn", "{\"layers\": [1]}"),
            ("hidden_ratio", "3.5"),
            ("value_dim", "256"),
            ("value_dim", "[128, 256]"),
            ("norm_bias", "1"),
            ("norm_first", "\"yes\""),
        ] {
            let error = spec(&format!(r#""{name}": {value},"#)).expect_err(name).to_string();
            assert!(error.contains(name), "{name}: {error}");
        }
    }

    #[test]
    fn widths_of_latents_that_are_left_out_are_named() {
        for name in ["decay_low_rank_dim", "a_low_rank_dim", "v_low_rank_dim", "gate_low_rank_dim"]
        {
            let mut fields = serde_json::json!({
                "model_type": "rwkv7", "hidden_size": 128, "vocab_size": 256,
                "num_hidden_layers": 2, "decay_low_rank_dim": 8, "a_low_rank_dim": 8,
                "v_low_rank_dim": 4, "gate_low_rank_dim": 16,
            });
            fields.as_object_mut().expect("an object").remove(name);
            let config = parse_config(fields.to_string().as_bytes()).expect("well-formed");
            let error = (super::ARCH.spec)(&config).expect_err(name).to_string();
            assert!(error.contains(name), "{name}: {error}");
        }
    }
}
