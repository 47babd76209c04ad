//! Nemotron-H, Nemotron Nano 2 and Nemotron 3 (NVIDIA, 2025): layers of one mixer each, Mamba 2, attention
//! without positions, a perceptron with a squared ReLU, or a mixture of such perceptrons, in the larger
//! models of Nemotron 3 with experts of a smaller width than the model's (`moe_latent_size`).

use pelton_base::limits;

use super::{
    Absent, Act, Arch, ArchSpec, GatedMlp, GroupRank, LayerPattern, Mixer, Mlp, Moe, Part,
    PlainMlp, Preset, RouterScore, SharedExpert, Stored, llama, mamba2, ssm,
};
use crate::config::HfConfig;
use crate::fields::ConfigError;

const NAMES: &[(Part, &str)] = ssm::names![
    "mixer",
    (Part::Embedding, "embeddings"),
    (Part::AttentionNorm, "norm"),
    (Part::MlpNorm, "norm"),
    (Part::FinalNorm, "norm_f"),
    (Part::Q, "mixer.q_proj"),
    (Part::K, "mixer.k_proj"),
    (Part::V, "mixer.v_proj"),
    (Part::O, "mixer.o_proj"),
    (Part::Up, "mixer.up_proj"),
    (Part::Down, "mixer.down_proj"),
    (Part::Router, "mixer.gate"),
    (Part::RouterCorrection, "mixer.gate.e_score_correction_bias"),
    (Part::LatentDown, "mixer.fc1_latent_proj"),
    (Part::LatentUp, "mixer.fc2_latent_proj"),
    (Part::ExpertUp, "mixer.experts.*.up_proj"),
    (Part::ExpertDown, "mixer.experts.*.down_proj"),
    (Part::SharedUp, "mixer.shared_experts.up_proj"),
    (Part::SharedDown, "mixer.shared_experts.down_proj"),
];

pub(super) const ARCH: Arch = Arch {
    names: &["NemotronHForCausalLM"],
    model_types: &["nemotron_h"],
    gguf_names: &["nemotron_h", "nemotron_h_moe"],
    written_as: Some("nemotron_h"),
    written_with_experts: Some("nemotron_h_moe"),
    spellings: &[
        ("rms_norm_eps", "layer_norm_epsilon"),
        ("layer_types", "layers_block_type"),
        ("mamba_n_heads", "mamba_num_heads"),
        ("mamba_d_head", "mamba_head_dim"),
        ("mamba_n_groups", "n_groups"),
        ("mamba_d_state", "ssm_state_size"),
        ("mamba_d_conv", "conv_kernel"),
        ("mamba_conv_bias", "use_conv_bias"),
    ],
    defaults: &[
        ("rms_norm_eps", Preset::Number(1e-5)),
        ("mamba_n_heads", Preset::Number(128.0)),
        ("mamba_d_head", Preset::Number(64.0)),
        ("mamba_n_groups", Preset::Number(8.0)),
        ("mamba_d_state", Preset::Number(128.0)),
        ("norm_topk_prob", Preset::Flag(true)),
    ],
    layer_pattern: Some(LayerPattern {
        field: "hybrid_override_pattern",
        kinds: &[('M', "mamba"), ('*', "attention"), ('-', "mlp"), ('E', "moe")],
    }),
    layer_kinds: &["mamba", "linear_attention", "attention", "mlp", "moe"],
    hf: Stored { names: NAMES, prefix: "backbone.", ..Stored::HF },
    gguf: mamba2::GGUF,
    spec,
    ..Arch::PLAIN
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = llama::spec(cfg)?;
    let mut mamba = ssm::read(cfg)?;
    mamba.bias = cfg.flag("use_bias", false)?;
    mamba.out_bias = mamba.bias;
    let mlp = PlainMlp {
        intermediate_size: cfg.intermediate_size,
        act: Act::ReluSquared,
        bias: cfg.mlp_bias,
    };
    let act = cfg.field("mlp_hidden_act");
    if !matches!(act.text()?, None | Some("relu2")) {
        return Err(act.error("\"relu2\", all that is supported"));
    }
    let Some(kinds) = cfg.layer_kinds()? else {
        let expected = "the kind of each layer, which `hybrid_override_pattern` may spell";
        return Err(cfg.field("layer_types").error(expected));
    };
    for (kind, layer) in kinds.into_iter().zip(&mut spec.layers) {
        layer.gqa_mut().rope = None;
        match kind {
            "mlp" => {
                layer.mixer = Mixer::Absent(Absent);
                layer.mlp = Mlp::Plain(mlp.clone());
                continue;
            }
            "moe" => {
                layer.mixer = Mixer::Absent(Absent);
                layer.mlp = Mlp::Moe(moe(cfg)?);
                continue;
            }
            kind if ssm::attends(kind) => {}
            _ => ssm::put(layer, &mamba),
        }
        layer.mlp = Mlp::Absent(Absent);
    }
    spec.ropes.clear();
    Ok(spec)
}

fn moe(cfg: &HfConfig) -> Result<Moe, ConfigError> {
    let mut moe = cfg.moe()?;
    if let Some(latent) = cfg.field("moe_latent_size").non_null() {
        moe.latent_size = Some(latent.count(limits::MODEL_WIDTH)?);
    }
    moe.router.score = RouterScore::Sigmoid;
    moe.router.groups = cfg.expert_groups(&moe, GroupRank::TwoBest)?;
    moe.router.scale = cfg.number("routed_scaling_factor", 1.0, [1e-6, 1e6])?;
    moe.has_correction = true;
    moe.has_gates = false;
    moe.expert.act = Act::ReluSquared;
    moe.expert.bias = cfg.mlp_bias;
    let intermediate_size = cfg.width("moe_shared_expert_intermediate_size")?;
    let mlp = GatedMlp { intermediate_size, ..moe.expert.clone() };
    moe.shared = Some(SharedExpert { mlp, is_gated: false });
    Ok(moe)
}

#[cfg(test)]
mod tests {
    use crate::arch::{Mixer, Mlp};
    use crate::config::parse_config;

    fn config(pattern: &str) -> String {
        format!(
            r#"{{"architectures": ["NemotronHForCausalLM"], "hidden_size": 64, "vocab_size": 256,
                "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
                "head_dim": 16, "max_position_embeddings": 128, "mamba_num_heads": 8,
                "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 16,
                "hybrid_override_pattern": "{pattern}"}}"#
        )
    }

    #[test]
    fn a_word_spells_the_layers() {
        let config = parse_config(config("M-*").as_bytes()).expect("well-formed");
        let spec = (super::ARCH.spec)(&config).expect("a spec");
        let kinds: Vec<(bool, bool, bool)> = (spec.layers.iter())
            .map(|layer| {
                let is_recurrent = matches!(layer.mixer, Mixer::Recurrent(_));
                let attends = matches!(layer.mixer, Mixer::Gqa(_));
                (is_recurrent, attends, !matches!(layer.mlp, Mlp::Absent(_)))
            })
            .collect();
        assert_eq!(kinds, [(true, false, false), (false, false, true), (false, true, false)]);
    }

    #[test]
    fn letters_that_are_not_known_and_experts_without_width_are_named() {
        let error = parse_config(config("M?").as_bytes()).expect_err("a letter").to_string();
        assert!(error.contains("\"?\"") || error.contains("layer_types"), "{error}");
        let experts = r#""n_routed_experts": 4, "num_experts_per_tok": 2, "moe_latent_size": 0"#;
        let config = config("ME").replacen('{', &format!("{{{experts}, "), 1);
        let config = parse_config(config.as_bytes()).expect("well-formed");
        let error = (super::ARCH.spec)(&config).expect_err("experts").to_string();
        assert!(error.contains("moe_latent_size"), "{error}");
    }
}
