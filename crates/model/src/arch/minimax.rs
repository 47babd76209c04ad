//! MiniMax-Text-01 (MiniMax, 2025): lightning attention (Qin et al., 2024) in most layers, whose heads
//! forget at a pace of their own whatever they read; attention in the rest, and experts as Mixtral has
//! them. The residual stream goes on from the norm of each mixer's input.
//!
//! Two kinds of folders hold the same tensors: those of transformers, and those that MiniMax published,
//! whose configs have other names.

use super::{
    Arch, ArchSpec, Gate, LayerSpec, Mixer, Part, Preset, Recurrent, Residual, Rule, Stored,
    ValueHeads, Wiring, llama,
};
use crate::config::{HfConfig, Window};
use crate::fields::ConfigError;
use pelton_base::limits;

pub(super) const ARCH: Arch = Arch {
    names: &["MiniMaxForCausalLM", "MiniMaxText01ForCausalLM", "MiniMaxM1ForCausalLM"],
    model_types: &["minimax", "minimax_text_01", "minimax_m1"],
    spellings: &[
        ("full_attn_alpha_factor", "layernorm_full_attention_alpha"),
        ("full_attn_beta_factor", "layernorm_full_attention_beta"),
        ("linear_attn_alpha_factor", "layernorm_linear_attention_alpha"),
        ("linear_attn_beta_factor", "layernorm_linear_attention_beta"),
        ("mlp_alpha_factor", "layernorm_mlp_alpha"),
        ("mlp_beta_factor", "layernorm_mlp_beta"),
    ],
    defaults: &[
        ("num_experts", Preset::Number(8.0)),
        ("num_experts_per_tok", Preset::Number(2.0)),
        ("norm_topk_prob", Preset::Flag(true)),
        ("rms_norm_eps", Preset::Number(1e-5)),
        ("rope_theta", Preset::Number(1e6)),
    ],
    layer_kinds: &["linear_attention"],
    hf: Stored {
        names: &[
            (Part::RecurrentQkv, "self_attn.qkv_proj"),
            (Part::RecurrentGate, "self_attn.output_gate"),
            (Part::GatedNorm, "self_attn.norm"),
            (Part::RecurrentOut, "self_attn.out_proj"),
            (Part::Router, "block_sparse_moe.gate"),
            (Part::Router, "mlp.gate"),
            (Part::ExpertGate, "block_sparse_moe.experts.*.w1"),
            (Part::ExpertDown, "block_sparse_moe.experts.*.w2"),
            (Part::ExpertUp, "block_sparse_moe.experts.*.w3"),
        ],
        ..Stored::HF
    },
    spec,
    ..Arch::PLAIN
};

/// Added to the mean square in the norm of a recurrence's output, whatever other norms add.
const OUTPUT_NORM_EPS: f32 = 1e-6;

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let postnorm = cfg.field("postnorm");
    // Published configs leave it out where it is false.
    if !postnorm.flag(cfg.architecture == ARCH.names[0])? {
        return Err(postnorm.error("true, all that is supported"));
    }
    let shared = cfg.field("shared_intermediate_size");
    shared.non_null().map_or(Ok(0), |field| field.integer(0, 0))?;
    let attends = attending_layers(cfg)?;
    cfg.expect_silu()?;
    let mut spec = llama::spec(cfg)?;
    let moe = cfg.moe()?;
    spec.set_moe(&moe, |_| true);
    let n_layers = spec.layers.len();
    if let Some(field) = cfg.field("rotary_dim").non_null() {
        let rotary_dim = field.integer(2, cfg.head_dim)?;
        if !rotary_dim.is_multiple_of(2) {
            return Err(field.error("an even width"));
        }
        spec.ropes[0].rotary_dim = rotary_dim;
    }
    let factors = |kind: &str| -> Result<[f32; 2], ConfigError> {
        let factor = |which| cfg.number(&format!("{kind}_{which}_factor"), 1.0, [1e-6, 1e6]);
        Ok([factor("alpha")?, factor("beta")?])
    };
    let (full, linear, mlp) = (factors("full_attn")?, factors("linear_attn")?, factors("mlp")?);
    for (i, (layer, attends)) in spec.layers.iter_mut().zip(attends).enumerate() {
        let [kept, added] = if attends { full } else { linear };
        let residual = Residual::OfNorms { kept: [kept, mlp[0]], added: [added, mlp[1]] };
        layer.wiring = Wiring { residual, ..Wiring::PRE };
        if attends {
            layer.gqa_mut().window = match cfg.sliding_window {
                Window::Tokens(n) => Some(n),
                Window::Absent | Window::Off => None,
            };
        } else {
            let mixer = Mixer::Recurrent(lightning(cfg, i, n_layers)?);
            *layer = LayerSpec { mixer, ..layer.clone() };
        }
    }
    Ok(spec)
}

/// The layers with attention: those that `layer_types` names, or that `attn_type_list` of published
/// configs has a 1 for.
fn attending_layers(cfg: &HfConfig) -> Result<Vec<bool>, ConfigError> {
    let (list, n) = (cfg.field("attn_type_list"), cfg.num_hidden_layers);
    let Some(value) = list.value().filter(|_| cfg.field("layer_types").non_null().is_none()) else {
        return cfg.attending_layers(|layer, _| layer.is_multiple_of(2));
    };
    let expected = || list.error(format!("0 (linear) or 1 for each of the {n} layers"));
    let attends = |item: &serde_json::Value| match item.as_u64() {
        Some(kind @ 0..=1) => Ok(kind == 1),
        _ => Err(expected()),
    };
    let items = value.as_array().filter(|items| items.len() == n);
    items.ok_or_else(expected)?.iter().map(attends).collect()
}

/// Lightning attention with the heads of attention; later layers forget less.
fn lightning(cfg: &HfConfig, layer: usize, n_layers: usize) -> Result<Recurrent, ConfigError> {
    let (n_heads, dim) = (cfg.num_attention_heads, cfg.head_dim);
    if n_heads > limits::STATE_HEADS {
        let field = cfg.field("num_attention_heads");
        return Err(field.error(format!("at most {} heads with a state", limits::STATE_HEADS)));
    }
    if dim > limits::STATE_HEAD_DIM {
        let most = limits::STATE_HEAD_DIM;
        return Err(cfg.field("head_dim").error(format!("at most {most}, this makes {dim}")));
    }
    let factor = 1.0 - layer as f64 / (n_layers as f64 - 1.0 + 1e-5) + 1e-5;
    Ok(Recurrent {
        n_key_heads: n_heads,
        n_value_heads: n_heads,
        order: ValueHeads::Grouped,
        key_dim: dim,
        value_dim: dim,
        taps: 0,
        rule: Rule::Steady { factor: factor as f32 },
        conv_bias: false,
        bias: false,
        out_bias: false,
        has_skip: false,
        gate: Gate::SigmoidAfterNorm { is_whole: true },
        norm_eps: OUTPUT_NORM_EPS,
    })
}

#[cfg(test)]
mod tests {
    use crate::arch::{ArchSpec, find};
    use crate::config::parse_config;
    use crate::fields::ConfigError;
    use serde_json::{Value, json};

    /// The spec of a small config with these fields.
    fn spec(changes: Value) -> Result<ArchSpec, ConfigError> {
        let mut config = json!({
            "architectures": ["MiniMaxForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256,
            "intermediate_size": 64, "max_position_embeddings": 128, "num_local_experts": 4,
        });
        let fields = config.as_object_mut().expect("an object");
        fields.extend(changes.as_object().expect("an object").clone());
        let config = parse_config(config.to_string().as_bytes())?;
        (find(&config.architecture).expect("registered").spec)(&config)
    }

    fn error(changes: Value) -> String {
        spec(changes).map(drop).err().map_or_else(String::new, |error| error.to_string())
    }

    #[test]
    fn published_configs_are_the_same_models_by_other_names() {
        let published = |list: Value| {
            json!({
                "architectures": ["MiniMaxText01ForCausalLM"], "attn_type_list": list,
                "postnorm": true, "shared_intermediate_size": 0, "rotary_dim": 8,
                "layernorm_full_attention_alpha": 3.5, "layernorm_linear_attention_beta": 0.5,
                "layernorm_mlp_alpha": 2.5,
            })
        };
        let usual = json!({
            "layer_types": ["linear_attention", "full_attention"], "rotary_dim": 8,
            "full_attn_alpha_factor": 3.5, "linear_attn_beta_factor": 0.5,
            "mlp_alpha_factor": 2.5,
        });
        assert_eq!(spec(published(json!([0, 1]))), spec(usual.clone()));
        assert_ne!(spec(published(json!([1, 0]))), spec(usual));
        for (list, words) in [(json!([0]), "each of the 2 layers"), (json!([0, 2]), "0 (linear)")] {
            assert!(error(published(list.clone())).contains(words), "{list}");
        }
        for (field, value) in [
            ("postnorm", json!(false)),
            ("shared_intermediate_size", json!(64)),
            ("rotary_dim", json!(9)),
        ] {
            let mut config = published(json!([0, 1]));
            config[field] = value;
            assert!(error(config).contains(&format!("`{field}`")), "{field}");
        }
    }

    #[test]
    fn heads_factors_and_layers_that_do_not_fit_are_named() {
        assert_eq!(error(json!({})), "");
        for (changes, words) in [
            (json!({"head_dim": 2048}), "`head_dim`"),
            (
                json!({"num_attention_heads": 2048, "num_key_value_heads": 2, "head_dim": 2}),
                "`num_attention_heads`",
            ),
            (json!({"mlp_alpha_factor": 0}), "`mlp_alpha_factor`"),
            (json!({"full_attn_beta_factor": "one"}), "`full_attn_beta_factor`"),
            (json!({"linear_attn_alpha_factor": 1e30}), "`linear_attn_alpha_factor`"),
            (json!({"layer_types": ["linear_attention"]}), "each of the 2 layers"),
            (json!({"layer_types": ["sliding_attention", "linear_attention"]}), "`layer_types`"),
            (json!({"num_experts_per_tok": 9}), "at most the 4 experts"),
            (json!({"hidden_act": "gelu"}), "`hidden_act`"),
        ] {
            let error = error(changes.clone());
            assert!(error.contains(words), "{changes}: {error}");
        }
    }
}
