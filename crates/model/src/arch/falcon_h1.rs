//! Falcon-H1 (TII, 2025): in every layer Mamba 2 and attention side by side, and factors of what the
//! projections give.

use super::{
    Act, Arch, ArchSpec, Gate, Mixer, Multipliers, Parallel, Part, Preset, Stored, llama, ssm,
};
use crate::config::HfConfig;
use crate::fields::ConfigError;
use pelton_base::limits;

const NAMES: &[(Part, &str)] = ssm::names![
    "mamba",
    (Part::MlpNorm, "pre_ff_layernorm"),
    (Part::FinalNorm, "final_layernorm"),
    (Part::Gate, "feed_forward.gate_proj"),
    (Part::Up, "feed_forward.up_proj"),
    (Part::Down, "feed_forward.down_proj"),
];

pub(super) const ARCH: Arch = Arch {
    names: &["FalconH1ForCausalLM"],
    model_types: &["falcon_h1"],
    gguf_names: &["falcon-h1"],
    written_as: Some("falcon-h1"),
    defaults: &[
        ("rms_norm_eps", Preset::Number(1e-5)),
        ("max_position_embeddings", Preset::Number(8192.0)),
        ("mamba_n_heads", Preset::Number(128.0)),
        ("mamba_d_state", Preset::Number(256.0)),
    ],
    layer_kinds: &["hybrid"],
    hf: Stored { names: NAMES, ..Stored::HF },
    gguf: Stored { decays_are_rates: true, has_factors_in_weights: true, ..Stored::GGUF },
    spec,
    ..Arch::PLAIN
};

/// Least and greatest factor.
const FACTORS: [f64; 2] = [1e-6, 1e6];

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    cfg.expect_flag("mamba_use_mlp", true)?;
    let mut spec = llama::spec(cfg)?;
    let number = |name: &str| cfg.number(name, 1.0, FACTORS);
    spec.embedding_scale = number("embedding_multiplier")?;
    spec.logit_scale = number("lm_head_multiplier")?;
    spec.multipliers = multipliers(cfg)?;
    let recurrent = recurrence(cfg)?;
    for layer in &mut spec.layers {
        let attention = layer.gqa_mut().clone();
        layer.mixer = Mixer::Parallel(Parallel { recurrent: recurrent.clone(), attention });
    }
    Ok(spec)
}

/// Mamba 2 of a width of its own, whose output may be normed.
fn recurrence(cfg: &HfConfig) -> Result<super::Recurrent, ConfigError> {
    if cfg.hidden_act != Act::Silu {
        return Err(cfg.field("hidden_act").error("\"silu\", all that is supported"));
    }
    let mut recurrent = ssm::read(cfg)?;
    let inner = cfg.field("mamba_d_ssm");
    // A config that says nothing has the width of 1,024; null is a multiple of the model's.
    let width = match inner.value() {
        None => Some(1024),
        Some(_) => inner.non_null().map(|n| n.count(limits::MODEL_WIDTH)).transpose()?,
    };
    if let Some(width) = width {
        let n_heads = recurrent.n_value_heads;
        let dim_field = cfg.field("mamba_d_head");
        let is_said = dim_field.integer(0, usize::MAX).is_ok();
        let dim = if is_said { recurrent.value_dim } else { width / n_heads };
        if dim * n_heads != width || dim > limits::STATE_HEAD_DIM {
            let expected = format!("the width of {n_heads} heads of one size (`mamba_n_heads`)");
            return Err(inner.error(expected));
        }
        recurrent.value_dim = dim;
    }
    let n_groups = recurrent.n_key_heads;
    let is_normed = cfg.flag("mamba_rms_norm", false)?;
    let is_gated_last = cfg.flag("mamba_norm_before_gate", true)?;
    recurrent.gate = match (is_normed, is_gated_last) {
        (false, _) => Gate::Alone,
        (true, false) => Gate::BeforeNorm { n_groups },
        (true, true) => Gate::AfterGroupNorm { n_groups },
    };
    recurrent.out_bias = cfg.flag("projectors_bias", false)?;
    Ok(recurrent)
}

fn multipliers(cfg: &HfConfig) -> Result<Multipliers, ConfigError> {
    let number = |name: &str| cfg.number(name, 1.0, FACTORS);
    let list = |name: &str, n: usize| {
        let field = cfg.field(name);
        let said = field.non_null().map(|field| field.numbers(n, FACTORS[0], FACTORS[1]));
        said.unwrap_or_else(|| Ok(vec![1.0; n]))
    };
    let mlp = list("mlp_multipliers", 2)?;
    let ssm = list("ssm_multipliers", 5)?;
    Ok(Multipliers {
        attention_in: number("attention_in_multiplier")?,
        key: number("key_multiplier")?,
        attention_out: number("attention_out_multiplier")?,
        recurrent_in: number("ssm_in_multiplier")?,
        // A config has them for gates, values, keys, queries and decays.
        recurrent: [ssm[3], ssm[2], ssm[1], ssm[0], ssm[4]],
        recurrent_out: number("ssm_out_multiplier")?,
        gate: mlp[0],
        down: mlp[1],
    })
}

#[cfg(test)]
mod tests {
    use crate::config::parse_config;

    #[test]
    fn configs_that_cannot_be_are_refused_by_the_name_of_the_field() {
        for (name, value) in [
            ("ssm_multipliers", "[1, 1, 1, 1]"),
            ("mlp_multipliers", "[1, Infinity]"),
            ("key_multiplier", "0"),
            ("attention_in_multiplier", "NaN"),
            ("mamba_d_ssm", "65"),
            ("mamba_d_ssm", "-64"),
            ("mamba_n_groups", "3"),
            ("mamba_d_conv", "0"),
            ("time_step_limit", "[0.0]"),
            ("time_step_limit", "[0.5, 0.25]"),
            ("hidden_act", "\"relu\""),
            ("mamba_use_mlp", "false"),
        ] {
            let text = format!(
                r#"{{"{name}": {value}, "architectures": ["FalconH1ForCausalLM"],
                    "hidden_size": 32, "vocab_size": 256, "num_hidden_layers": 2,
                    "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
                    "head_dim": 16, "mamba_n_heads": 8, "mamba_d_head": 8,
                    "mamba_d_state": 16,
                    {} "rope_theta": 1e4}}"#,
                if name == "mamba_d_ssm" { "" } else { r#""mamba_d_ssm": 64,"# },
            );
            let config = parse_config(text.as_bytes()).expect("well-formed");
            let error = (super::ARCH.spec)(&config).expect_err(name).to_string();
            assert!(error.contains(name), "{name}: {error}");
        }
    }
}
