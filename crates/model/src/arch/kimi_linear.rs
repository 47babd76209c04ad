//! Kimi Linear (Kimi Team, 2025): three layers of Kimi Delta Attention for each of latent attention,
//! which rotates nothing; experts as DeepSeek V3 has them.

use pelton_base::limits;

use super::{
    Arch, ArchSpec, Gate, LayerSpec, Mixer, Mla, Part, Preset, Recurrent, Rule, Stored, ValueHeads,
    deepseek, llama,
};
use crate::config::HfConfig;
use crate::fields::{ConfigError, Field};

pub(super) const ARCH: Arch = Arch {
    names: &["KimiLinearForCausalLM"],
    model_types: &["kimi_linear"],
    gguf_names: &["kimi-linear"],
    written_as: Some("kimi-linear"),
    spellings: &[
        deepseek::HEAD_DIM,
        ("max_position_embeddings", "model_max_length"),
        ("num_experts_per_tok", "num_experts_per_token"),
        ("norm_topk_prob", "moe_renormalize"),
        ("n_shared_experts", "num_shared_experts"),
        ("n_group", "num_expert_group"),
        ("scoring_func", "moe_router_activation_func"),
    ],
    defaults: &[
        ("rms_norm_eps", Preset::Number(1e-5)),
        ("topk_method", Preset::Text("noaux_tc")),
        ("scoring_func", Preset::Text("sigmoid")),
        ("norm_topk_prob", Preset::Flag(true)),
        ("routed_scaling_factor", Preset::Number(2.446)),
        ("n_shared_experts", Preset::Number(1.0)),
        ("linear_head_dim", Preset::Number(128.0)),
        ("linear_num_heads", Preset::Number(32.0)),
        ("linear_conv_kernel_dim", Preset::Number(4.0)),
    ],
    layer_kinds: &["linear_attention"],
    hf: Stored {
        names: &[
            (Part::KNorm, "self_attn.kv_a_layernorm"),
            (Part::QNorm, "self_attn.q_a_layernorm"),
            (Part::RecurrentQ, "self_attn.q_proj"),
            (Part::RecurrentK, "self_attn.k_proj"),
            (Part::RecurrentV, "self_attn.v_proj"),
            (Part::ConvQ, "self_attn.q_conv1d"),
            (Part::ConvK, "self_attn.k_conv1d"),
            (Part::ConvV, "self_attn.v_conv1d"),
            (Part::RecurrentGate, "self_attn.g_a_proj"),
            (Part::RecurrentGateUp, "self_attn.g_b_proj"),
            (Part::RecurrentBeta, "self_attn.b_proj"),
            (Part::RecurrentDecay, "self_attn.f_a_proj"),
            (Part::DecayUp, "self_attn.f_b_proj"),
            (Part::Decay, "self_attn.A_log"),
            (Part::DecayBias, "self_attn.dt_bias"),
            (Part::GatedNorm, "self_attn.o_norm"),
            (Part::RecurrentOut, "self_attn.o_proj"),
            (Part::Router, "block_sparse_moe.gate"),
            (Part::RouterCorrection, "block_sparse_moe.gate.e_score_correction_bias"),
            (Part::ExpertGate, "block_sparse_moe.experts.*.w1"),
            (Part::ExpertUp, "block_sparse_moe.experts.*.w3"),
            (Part::ExpertDown, "block_sparse_moe.experts.*.w2"),
            (Part::SharedGate, "block_sparse_moe.shared_experts.gate_proj"),
            (Part::SharedUp, "block_sparse_moe.shared_experts.up_proj"),
            (Part::SharedDown, "block_sparse_moe.shared_experts.down_proj"),
        ],
        ..Stored::HF
    },
    gguf: Stored {
        names: &[
            (Part::KNorm, "attn_kv_a_norm"),
            (Part::QNorm, "attn_q_a_norm"),
            (Part::RecurrentGate, "ssm_g_a"),
            (Part::RecurrentDecay, "ssm_f_a"),
            (Part::RecurrentOut, "attn_output"),
        ],
        decays_are_rates: true,
        ..Stored::GGUF
    },
    spec,
    ..Arch::PLAIN
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    cfg.expect_silu()?;
    cfg.expect_flag("mla_use_nope", true)?;
    let mut spec = llama::spec(cfg)?;
    spec.ropes.clear();
    let (mla, kda) = (Mla::read_unrotated(cfg)?, kda(cfg)?);
    let attends = match listed(cfg)? {
        Some(attends) => attends,
        None => cfg.attending_layers(|layer, _| layer > 0 && layer.is_multiple_of(4))?,
    };
    for (layer, attends) in spec.layers.iter_mut().zip(attends) {
        let mixer = match attends {
            true => Mixer::Mla(mla.clone()),
            false => Mixer::Recurrent(kda.clone()),
        };
        *layer = LayerSpec { mixer, ..layer.clone() };
    }
    let is_sparse = sparse_layers(cfg)?;
    if is_sparse.contains(&true) && cfg.field("num_experts").non_null().is_some() {
        spec.set_moe(&deepseek::moe(cfg)?, |layer| is_sparse[layer]);
    }
    Ok(spec)
}

/// A field of the recurrences, in a table of their own or beside the others.
fn linear<'a>(cfg: &'a HfConfig, in_table: &str, alone: &str) -> Field<'a> {
    let field = cfg.field("linear_attn_config").get(in_table);
    if field.non_null().is_some() { field } else { cfg.field(alone) }
}

/// Kimi Delta Attention: as many heads of keys as of values, of one size, which the latents of gates
/// have as well.
fn kda(cfg: &HfConfig) -> Result<Recurrent, ConfigError> {
    let n_heads = linear(cfg, "num_heads", "linear_num_heads").count(limits::STATE_HEADS)?;
    let dim = linear(cfg, "head_dim", "linear_head_dim").count(limits::STATE_HEAD_DIM)?;
    let taps = linear(cfg, "short_conv_kernel_size", "linear_conv_kernel_dim");
    Ok(Recurrent {
        n_key_heads: n_heads,
        n_value_heads: n_heads,
        order: ValueHeads::Grouped,
        key_dim: dim,
        value_dim: dim,
        taps: taps.count(limits::CONV_TAPS)?,
        rule: Rule::ChannelDelta { rank: dim },
        conv_bias: false,
        bias: false,
        out_bias: false,
        has_skip: false,
        gate: Gate::SigmoidAfterNorm { is_whole: false },
        norm_eps: cfg.rms_norm_eps,
    })
}

/// The layers with attention as two lists of all layers give them, which count from one.
fn listed(cfg: &HfConfig) -> Result<Option<Vec<bool>>, ConfigError> {
    let fields = ["full_attn_layers", "kda_layers"].map(|name| linear_lists(cfg).get(name));
    let is_said = fields.iter().all(|field| field.non_null().is_some());
    if !is_said || cfg.field("layer_types").non_null().is_some() {
        return Ok(None);
    }
    let n_layers = cfg.num_hidden_layers;
    let mut attends = vec![None; n_layers];
    for (field, kind) in fields.iter().zip([true, false]) {
        let expected = || {
            field.error(format!("layers from 1 to {n_layers}, each in one of the two lists alone"))
        };
        let layers = field.value().and_then(|value| value.as_array()).ok_or_else(expected)?;
        for layer in layers {
            let layer =
                layer.as_u64().and_then(|layer| usize::try_from(layer).ok()?.checked_sub(1));
            let place = layer.and_then(|layer| attends.get_mut(layer)).ok_or_else(expected)?;
            if place.replace(kind).is_some() {
                return Err(expected());
            }
        }
    }
    let missing = || fields[1].error(format!("every one of the {n_layers} layers in a list"));
    attends.into_iter().collect::<Option<_>>().ok_or_else(missing).map(Some)
}

fn linear_lists(cfg: &HfConfig) -> Field<'_> {
    cfg.field("linear_attn_config")
}

/// The layers with experts: those that `mlp_layer_types` calls sparse, or all after some dense ones.
fn sparse_layers(cfg: &HfConfig) -> Result<Vec<bool>, ConfigError> {
    let n_layers = cfg.num_hidden_layers;
    let kinds = cfg.field("mlp_layer_types");
    let Some(list) = kinds.value() else {
        let number = |name: &str, least| {
            let field = cfg.field(name);
            field.non_null().map_or(Ok(1), |field| field.integer(least, limits::MODEL_LAYERS))
        };
        let n_dense = number("first_k_dense_replace", 0)?;
        let step = number("moe_layer_freq", 1)?;
        return Ok((0..n_layers).map(|i| i >= n_dense && i.is_multiple_of(step)).collect());
    };
    let expected = || kinds.error(format!("\"dense\" or \"sparse\" for each of {n_layers} layers"));
    let items = list.as_array().filter(|items| items.len() == n_layers).ok_or_else(expected)?;
    let is_sparse = |item: &serde_json::Value| match item.as_str() {
        Some("sparse") => Ok(true),
        Some("dense") => Ok(false),
        _ => Err(expected()),
    };
    items.iter().map(is_sparse).collect()
}

#[cfg(test)]
mod tests {
    use crate::config::parse_config;
    use serde_json::{Value, json};

    /// The error of a small config with these fields.
    fn error(changes: Value) -> String {
        let mut config = json!({
            "architectures": ["KimiLinearForCausalLM"], "hidden_size": 64, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 256,
            "intermediate_size": 64, "model_max_length": 128, "num_experts": 4,
            "num_experts_per_token": 2, "moe_intermediate_size": 32, "kv_lora_rank": 32,
            "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16,
            "linear_attn_config": {
                "full_attn_layers": [2], "kda_layers": [1, 3], "head_dim": 16, "num_heads": 4,
                "short_conv_kernel_size": 4
            },
        });
        for (name, value) in changes.as_object().expect("an object") {
            match config["linear_attn_config"].get(name) {
                Some(_) => config["linear_attn_config"][name] = value.clone(),
                None => config[name] = value.clone(),
            }
        }
        let parsed = parse_config(config.to_string().as_bytes());
        let made = parsed.and_then(|config| (super::ARCH.spec)(&config).map(drop));
        made.err().map_or_else(String::new, |error| error.to_string())
    }

    #[test]
    fn heads_states_and_layers_that_do_not_fit_are_named() {
        assert_eq!(error(json!({})), "");
        for (changes, words) in [
            (json!({"num_heads": 0}), "`linear_attn_config.num_heads`"),
            (json!({"head_dim": 1 << 20}), "`linear_attn_config.head_dim`"),
            (json!({"short_conv_kernel_size": 0}), "`linear_attn_config.short_conv_kernel_size`"),
            (json!({"full_attn_layers": [0]}), "`linear_attn_config.full_attn_layers`"),
            (json!({"full_attn_layers": [4]}), "`linear_attn_config.full_attn_layers`"),
            (json!({"full_attn_layers": [-1]}), "`linear_attn_config.full_attn_layers`"),
            (json!({"full_attn_layers": 2}), "`linear_attn_config.full_attn_layers`"),
            (json!({"kda_layers": [1, 2, 3]}), "each in one of the two lists alone"),
            (json!({"kda_layers": [1]}), "every one of the 3 layers in a list"),
            (json!({"layer_types": ["linear_attention"]}), "each of the 3 layers"),
            (json!({"mlp_layer_types": ["dense"]}), "`mlp_layer_types`"),
            (json!({"mlp_layer_types": ["dense", "sparse", "odd"]}), "`mlp_layer_types`"),
            (json!({"moe_layer_freq": 0}), "`moe_layer_freq`"),
            (json!({"moe_router_activation_func": "tanh"}), "`scoring_func`"),
            (json!({"num_expert_group": 3}), "`n_group`"),
            (json!({"mla_use_nope": false}), "`mla_use_nope`"),
            (json!({"hidden_act": "relu"}), "`hidden_act`"),
        ] {
            let error = error(changes.clone());
            assert!(error.contains(words), "{changes}: {error}");
        }
    }
}
