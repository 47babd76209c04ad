//! Qwen3-Next (Qwen Team, 2025): three layers of Gated DeltaNet for each of attention, whose output is
//! gated and of whose heads a quarter is rotated; experts with a shared one behind a sigmoid.

use super::{
    Arch, ArchSpec, Gate, GatedMlp, LayerSpec, Mixer, Part, Preset, QkNorm, Recurrent, Rule,
    SharedExpert, Stored, ValueHeads, llama, qwen2_moe,
};
use crate::config::HfConfig;
use crate::fields::ConfigError;
use pelton_base::limits;

pub(super) const ARCH: Arch = Arch {
    names: &["Qwen3NextForCausalLM"],
    model_types: &["qwen3_next"],
    defaults: &[
        ("partial_rotary_factor", Preset::Number(0.25)),
        ("full_attention_interval", Preset::Number(4.0)),
        ("linear_conv_kernel_dim", Preset::Number(4.0)),
        ("linear_key_head_dim", Preset::Number(128.0)),
        ("linear_value_head_dim", Preset::Number(128.0)),
        ("linear_num_key_heads", Preset::Number(16.0)),
        ("linear_num_value_heads", Preset::Number(32.0)),
        ("head_dim", Preset::Number(256.0)),
        ("intermediate_size", Preset::Number(5632.0)),
        ("decoder_sparse_step", Preset::Number(1.0)),
        ("norm_topk_prob", Preset::Flag(true)),
    ],
    layer_kinds: &["linear_attention"],
    partial_rotary: true,
    hf: HF,
    gguf_names: &["qwen3next"],
    gguf: Stored { are_gates_fused: true, ..GGUF },
    written_as: Some("qwen3next"),
    spec,
    ..Arch::PLAIN
};

/// Norms but those of recurrences are stored minus one.
pub(super) const HF: Stored = Stored {
    names: &[
        (Part::SharedGate, "mlp.shared_expert.gate_proj"),
        (Part::SharedUp, "mlp.shared_expert.up_proj"),
        (Part::SharedDown, "mlp.shared_expert.down_proj"),
    ],
    norm_offset: 1.0,
    ..Stored::HF
};

/// All norms are stored as they are.
pub(super) const GGUF: Stored = Stored {
    names: &[(Part::MlpNorm, "post_attention_norm")],
    decays_are_rates: true,
    ..Stored::GGUF
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = mixers(cfg)?;
    let is_sparse = qwen2_moe::sparse_layers(cfg)?;
    if is_sparse.contains(&true) {
        set_experts(&mut spec, cfg, |layer| is_sparse[layer])?;
    }
    Ok(spec)
}

/// Gated attention and recurrences, with a gated perceptron in each layer.
pub(super) fn mixers(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = llama::spec(cfg)?;
    let delta = Mixer::Recurrent(delta(cfg)?);
    let interval = cfg.field("full_attention_interval").count(limits::MODEL_LAYERS)?;
    let kinds = cfg.layer_kinds()?;
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        let attends = match &kinds {
            Some(kinds) => kinds[i] == "full_attention",
            None => (i + 1).is_multiple_of(interval),
        };
        let gqa = layer.gqa_mut();
        gqa.qk_norm = Some(QkNorm::HeadRms);
        gqa.is_gated = true;
        if !attends {
            *layer = LayerSpec { mixer: delta.clone(), ..layer.clone() };
        }
    }
    Ok(spec)
}

/// Experts and the shared one in some layers.
pub(super) fn set_experts(
    spec: &mut ArchSpec,
    cfg: &HfConfig,
    has_experts: impl Fn(usize) -> bool,
) -> Result<(), ConfigError> {
    let mut moe = cfg.moe()?;
    let intermediate_size = cfg.width("shared_expert_intermediate_size")?;
    let mlp = GatedMlp { intermediate_size, ..moe.expert.clone() };
    moe.shared = Some(SharedExpert { mlp, is_gated: true });
    spec.set_moe(&moe, has_experts);
    Ok(())
}

/// The recurrence of layers without attention.
pub(super) fn delta(cfg: &HfConfig) -> Result<Recurrent, ConfigError> {
    let width = |name: &str| cfg.field(name).count(limits::STATE_HEAD_DIM);
    let heads = |name: &str| cfg.field(name).count(limits::STATE_HEADS);
    let n_key_heads = heads("linear_num_key_heads")?;
    let n_value_heads = heads("linear_num_value_heads")?;
    if !n_value_heads.is_multiple_of(n_key_heads) {
        let field = cfg.field("linear_num_value_heads");
        return Err(field.error(format!("a multiple of the {n_key_heads} heads of keys")));
    }
    Ok(Recurrent {
        n_key_heads,
        n_value_heads,
        order: match cfg.flag("value_heads_are_tiled", false)? {
            true => ValueHeads::Tiled,
            false => ValueHeads::Grouped,
        },
        key_dim: width("linear_key_head_dim")?,
        value_dim: width("linear_value_head_dim")?,
        taps: cfg.field("linear_conv_kernel_dim").count(limits::CONV_TAPS)?,
        rule: Rule::Delta { beta_scale: 1.0 },
        conv_bias: false,
        bias: false,
        out_bias: false,
        has_skip: false,
        gate: Gate::AfterNorm,
        norm_eps: cfg.rms_norm_eps,
    })
}

#[cfg(test)]
mod tests {
    use crate::config::parse_config;
    use serde_json::{Value, json};

    /// The error of a small config with these fields.
    fn error(changes: Value) -> String {
        let mut config = json!({
            "architectures": ["Qwen3NextForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 256,
            "max_position_embeddings": 128, "num_experts": 4, "num_experts_per_tok": 2,
            "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
        });
        let fields = config.as_object_mut().expect("an object");
        fields.extend(changes.as_object().expect("an object").clone());
        let parsed = parse_config(config.to_string().as_bytes());
        let made = parsed.and_then(|config| (super::ARCH.spec)(&config).map(drop));
        made.err().map_or_else(String::new, |error| error.to_string())
    }

    #[test]
    fn heads_states_and_layers_that_do_not_fit_are_named() {
        assert_eq!(error(json!({})), "");
        for (changes, words) in [
            (json!({"linear_num_value_heads": 3}), "a multiple of the 2 heads of keys"),
            (json!({"linear_num_key_heads": 0}), "`linear_num_key_heads`"),
            (json!({"linear_key_head_dim": 0}), "`linear_key_head_dim`"),
            (json!({"linear_value_head_dim": 1 << 20}), "`linear_value_head_dim`"),
            (json!({"linear_conv_kernel_dim": 0}), "`linear_conv_kernel_dim`"),
            (json!({"linear_conv_kernel_dim": 99}), "`linear_conv_kernel_dim`"),
            (json!({"full_attention_interval": 0}), "`full_attention_interval`"),
            (json!({"layer_types": ["linear_attention"]}), "each of the 2 layers"),
            (json!({"layer_types": ["linear_attention", "waves"]}), "\"linear_attention\""),
            (json!({"partial_rotary_factor": 0.1}), "an even part of a head"),
        ] {
            let error = error(changes.clone());
            assert!(error.contains(words), "{changes}: {error}");
        }
    }
}
