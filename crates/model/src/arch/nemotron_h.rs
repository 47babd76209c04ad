//! Nemotron-H and Nemotron Nano 2 (NVIDIA, 2025): layers of one mixer each, Mamba 2, attention without
//! positions, or a perceptron with a squared ReLU.

use super::{
    Absent, Act, Arch, ArchSpec, LayerPattern, Mixer, Mlp, PlainMlp, Preset, Stored, llama, mamba2,
    ssm,
};
use crate::config::HfConfig;
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["NemotronHForCausalLM"],
    model_types: &["nemotron_h"],
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
    ],
    layer_pattern: Some(LayerPattern {
        field: "hybrid_override_pattern",
        kinds: &[('M', "mamba"), ('*', "attention"), ('-', "mlp"), ('E', "moe")],
    }),
    layer_kinds: &["mamba", "linear_attention", "attention", "mlp", "moe"],
    hf: Stored { names: mamba2::NAMES, prefix: "backbone.", ..Stored::HF },
    spec,
    ..Arch::PLAIN
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let mut spec = llama::spec(cfg)?;
    let mut mamba = ssm::read(cfg)?;
    mamba.bias = cfg.flag("use_bias", false)?;
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
                let expected = "layers without experts: experts without gates are not supported";
                return Err(cfg.field("layer_types").error(expected));
            }
            kind if ssm::attends(kind) => {}
            _ => ssm::put(layer, &mamba),
        }
        layer.mlp = Mlp::Absent(Absent);
    }
    spec.ropes.clear();
    Ok(spec)
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
    fn letters_and_experts_that_are_not_known_are_named() {
        let error = parse_config(config("M?").as_bytes()).expect_err("a letter").to_string();
        assert!(error.contains("\"?\"") || error.contains("layer_types"), "{error}");
        let config = parse_config(config("ME").as_bytes()).expect("well-formed");
        let error = (super::ARCH.spec)(&config).expect_err("experts").to_string();
        assert!(error.contains("experts without gates"), "{error}");
    }
}
