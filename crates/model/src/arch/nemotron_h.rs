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
    gguf_names: &["nemotron_h"],
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
    gguf: mamba2::GGUF,
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
