//! Jamba (AI21 Labs, 2024): selective scans in most layers, attention without positions in the rest, and
//! experts in every few layers.

use super::{
    Arch, ArchSpec, Mixer, Part, Preset, SelectionNorms, Stored, llama, mamba, qwen2_moe, ssm,
};
use crate::config::HfConfig;
use crate::fields::ConfigError;
use pelton_base::limits;

const NAMES: &[(Part, &str)] = mamba::names![
    "mamba",
    (Part::StepNorm, "mamba.dt_layernorm"),
    (Part::KeySelectionNorm, "mamba.b_layernorm"),
    (Part::QuerySelectionNorm, "mamba.c_layernorm"),
    (Part::MlpNorm, "pre_ff_layernorm"),
    (Part::FinalNorm, "final_layernorm"),
    (Part::Gate, "feed_forward.gate_proj"),
    (Part::Up, "feed_forward.up_proj"),
    (Part::Down, "feed_forward.down_proj"),
    (Part::Router, "feed_forward.router"),
    (Part::ExpertGate, "feed_forward.experts.*.gate_proj"),
    (Part::ExpertUp, "feed_forward.experts.*.up_proj"),
    (Part::ExpertDown, "feed_forward.experts.*.down_proj"),
];

pub(super) const ARCH: Arch = Arch {
    names: &["JambaForCausalLM"],
    model_types: &["jamba"],
    gguf_names: &["jamba"],
    written_as: Some("jamba"),
    defaults: &[
        ("rms_norm_eps", Preset::Number(1e-6)),
        ("max_position_embeddings", Preset::Number(262_144.0)),
        ("mamba_d_state", Preset::Number(16.0)),
        ("num_experts", Preset::Number(16.0)),
        ("num_experts_per_tok", Preset::Number(2.0)),
    ],
    layer_kinds: &["mamba", "attention", "linear_attention"],
    hf: Stored { names: NAMES, ..Stored::HF },
    gguf: Stored { decays_are_rates: true, ..Stored::GGUF },
    spec,
    ..Arch::PLAIN
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    cfg.expect_flag("mamba_inner_layernorms", true)?;
    let mut spec = llama::spec(cfg)?;
    let scan = mamba::read(cfg, SelectionNorms::Weighted)?;
    let kinds = cfg.layer_kinds()?;
    let period = Period::read(cfg, "attn_layer", [8, 4])?;
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        layer.gqa_mut().rope = None;
        let attends = kinds.as_ref().map_or(period.has(i), |kinds| ssm::attends(kinds[i]));
        if !attends {
            layer.mixer = Mixer::SelectiveScan(scan.clone());
        }
    }
    spec.ropes.clear();
    // A config without experts may say that a token chooses several.
    if cfg.field("num_experts").count(limits::MODEL_WIDTH)? > 1 {
        let (moe, period) = (cfg.moe()?, Period::read(cfg, "expert_layer", [2, 1])?);
        let mut is_sparse: Vec<bool> = (0..spec.layers.len()).map(|i| period.has(i)).collect();
        qwen2_moe::take_out_dense(cfg, &mut is_sparse)?;
        spec.set_moe(&moe, |layer| is_sparse[layer]);
    }
    Ok(spec)
}

/// One layer of every few.
struct Period {
    n_layers: usize,
    offset: usize,
}

impl Period {
    /// The fields `NAME_period` and `NAME_offset`.
    fn read(cfg: &HfConfig, name: &str, usual: [usize; 2]) -> Result<Self, ConfigError> {
        let n_layers = format!("{name}_period");
        let n_layers = cfg.field(&n_layers);
        let n_layers =
            n_layers.non_null().map_or(Ok(usual[0]), |field| field.count(limits::MODEL_LAYERS))?;
        let offset = format!("{name}_offset");
        let offset = cfg.field(&offset);
        let offset = offset.non_null().map_or(Ok(usual[1]), |n| n.integer(0, n_layers - 1))?;
        Ok(Self { n_layers, offset })
    }

    fn has(&self, layer: usize) -> bool {
        layer % self.n_layers == self.offset
    }
}

#[cfg(test)]
mod tests {
    use crate::arch::{Mixer, Mlp};
    use crate::config::parse_config;

    fn config(more: &str) -> String {
        format!(
            r#"{{{more} "architectures": ["JambaForCausalLM"], "hidden_size": 32,
                "vocab_size": 256, "num_hidden_layers": 8, "intermediate_size": 64,
                "num_attention_heads": 4, "num_key_value_heads": 2}}"#
        )
    }

    #[test]
    fn attention_and_experts_come_every_few_layers() {
        let text = config(r#""attn_layer_period": 4, "attn_layer_offset": 1, "num_experts": 4,"#);
        let config = parse_config(text.as_bytes()).expect("well-formed");
        let spec = (super::ARCH.spec)(&config).expect("a spec");
        let attends = |i: usize| matches!(spec.layers[i].mixer, Mixer::Gqa(_));
        let has_experts = |i: usize| matches!(spec.layers[i].mlp, Mlp::Moe(_));
        assert_eq!((0..8).filter(|i| attends(*i)).collect::<Vec<_>>(), [1, 5]);
        assert_eq!((0..8).filter(|i| has_experts(*i)).collect::<Vec<_>>(), [1, 3, 5, 7]);
    }

    #[test]
    fn a_model_without_experts_may_say_that_a_token_chooses_several() {
        let text = config(r#""num_experts": 1, "num_experts_per_tok": 2,"#);
        let config = parse_config(text.as_bytes()).expect("well-formed");
        let spec = (super::ARCH.spec)(&config).expect("a spec");
        assert!(spec.layers.iter().all(|layer| matches!(layer.mlp, Mlp::Gated(_))));
    }

    #[test]
    fn configs_that_cannot_be_are_refused_by_the_name_of_the_field() {
        for (name, value) in [
            ("attn_layer_period", "0"),
            ("attn_layer_offset", "8"),
            ("expert_layer_period", "-1"),
            ("expert_layer_offset", "2"),
            ("num_experts", "0"),
            ("num_experts_per_tok", "17"),
            ("mamba_d_state", "0"),
            ("mamba_d_conv", "17"),
            ("mamba_expand", "65"),
            ("mamba_dt_rank", "\"many\""),
            ("mamba_dt_rank", "0"),
            ("hidden_act", "\"relu\""),
            ("mamba_inner_layernorms", "false"),
        ] {
            let text = config(&format!(r#""{name}": {value},"#));
            let config = parse_config(text.as_bytes());
            let error = config.and_then(|config| (super::ARCH.spec)(&config));
            let error = error.expect_err(name).to_string();
            assert!(error.contains(name), "{name}: {error}");
        }
    }
}
