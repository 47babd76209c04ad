//! Mamba (Gu and Dao, 2023) and Falcon Mamba (TII, 2024): selective scans alone, without perceptrons and
//! positions. Falcon Mamba norms what a scan selects, without weights.

use super::{
    Absent, Act, Arch, ArchSpec, Mixer, Mlp, Part, Preset, SelectionNorms, SelectiveScan, Stored,
    llama, mamba2,
};
use crate::config::HfConfig;
use crate::fields::ConfigError;
use pelton_base::limits;

/// The names of a mixer's tensors under this prefix, and other names of the family.
macro_rules! names {
    ($prefix:literal $(, $more:expr)* $(,)?) => {
        &[
            (Part::RecurrentIn, concat!($prefix, ".in_proj")),
            (Part::Conv, concat!($prefix, ".conv1d")),
            (Part::Selection, concat!($prefix, ".x_proj")),
            (Part::Step, concat!($prefix, ".dt_proj")),
            (Part::Decay, concat!($prefix, ".A_log")),
            (Part::Skip, concat!($prefix, ".D")),
            (Part::RecurrentOut, concat!($prefix, ".out_proj")),
            $($more,)*
        ]
    };
}
pub(super) use names;

pub(super) const ARCH: Arch = Arch {
    names: &["MambaForCausalLM"],
    model_types: &["mamba"],
    gguf_names: &["mamba"],
    written_as: Some("mamba"),
    spellings: &[
        ("rms_norm_eps", "layer_norm_epsilon"),
        ("mamba_d_state", "state_size"),
        ("mamba_d_conv", "conv_kernel"),
        ("mamba_expand", "expand"),
        ("mamba_dt_rank", "time_step_rank"),
        ("mamba_proj_bias", "use_bias"),
        ("mamba_conv_bias", "use_conv_bias"),
    ],
    defaults: &[
        ("rms_norm_eps", Preset::Number(1e-5)),
        ("tie_word_embeddings", Preset::Flag(true)),
        ("mamba_d_state", Preset::Number(16.0)),
        // There is no attention and no perceptron, and nothing that depends on a position.
        ("num_attention_heads", Preset::Number(1.0)),
        ("head_dim", Preset::Number(64.0)),
        ("intermediate_size", Preset::Number(1.0)),
        ("max_position_embeddings", Preset::Number(1_048_576.0)),
    ],
    hf: Stored {
        names: names![
            "mixer",
            (Part::Embedding, "embeddings"),
            (Part::Embedding, "embedding"),
            (Part::AttentionNorm, "norm"),
            (Part::MlpNorm, "norm"),
            (Part::FinalNorm, "norm_f"),
        ],
        prefix: "backbone.",
        ..Stored::HF
    },
    gguf: mamba2::GGUF,
    spec,
    ..Arch::PLAIN
};

pub(super) const FALCON: Arch = Arch {
    names: &["FalconMambaForCausalLM"],
    model_types: &["falcon_mamba"],
    // Such files call themselves mamba.
    gguf_names: &[],
    spec: falcon,
    ..ARCH
};

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    let is_normed = cfg.flag("mamba_selection_is_normed", false)?;
    build(cfg, if is_normed { SelectionNorms::Bare } else { SelectionNorms::Absent })
}

fn falcon(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    build(cfg, SelectionNorms::Bare)
}

fn build(cfg: &HfConfig, norms: SelectionNorms) -> Result<ArchSpec, ConfigError> {
    let mut spec = llama::spec(cfg)?;
    let mut scan = read(cfg, norms)?;
    scan.norm_eps = cfg.number("mixer_rms_eps", 1e-6, [0.0, 1.0])?;
    for layer in &mut spec.layers {
        layer.mixer = Mixer::SelectiveScan(scan.clone());
        layer.mlp = Mlp::Absent(Absent);
    }
    spec.ropes.clear();
    Ok(spec)
}

/// The selective scan as the fields `mamba_*` describe it.
pub(super) fn read(cfg: &HfConfig, norms: SelectionNorms) -> Result<SelectiveScan, ConfigError> {
    if cfg.hidden_act != Act::Silu {
        return Err(cfg.field("hidden_act").error("\"silu\", all that is supported"));
    }
    let (inner, expand) = (cfg.field("mamba_inner_size"), cfg.field("mamba_expand"));
    let channels = match inner.non_null() {
        Some(inner) => inner.count(limits::MODEL_WIDTH)?,
        None => expand.non_null().map_or(Ok(2), |field| field.count(64))? * cfg.hidden_size,
    };
    if channels > limits::MODEL_WIDTH {
        return Err(expand.error(format!("at most {} channels", limits::MODEL_WIDTH)));
    }
    let rank = cfg.field("mamba_dt_rank");
    let is_said = rank.non_null().is_some() && !matches!(rank.text(), Ok(Some("auto")));
    let taps = cfg.field("mamba_d_conv");
    Ok(SelectiveScan {
        channels,
        state_dim: cfg.field("mamba_d_state").count(limits::STATE_HEAD_DIM)?,
        step_rank: match is_said {
            true => rank.count(limits::MODEL_WIDTH)?,
            false => cfg.hidden_size.div_ceil(16),
        },
        taps: taps.non_null().map_or(Ok(4), |field| field.count(limits::CONV_TAPS))?,
        conv_bias: cfg.flag("mamba_conv_bias", true)?,
        bias: cfg.flag("mamba_proj_bias", false)?,
        norms,
        norm_eps: cfg.rms_norm_eps,
    })
}

#[cfg(test)]
mod tests {
    use crate::arch::{ArchSpec, Mixer, SelectionNorms, SelectiveScan};
    use crate::config::parse_config;
    use crate::fields::ConfigError;

    fn spec(name: &str, more: &str) -> Result<ArchSpec, ConfigError> {
        let text = format!(
            r#"{{{more} "architectures": ["{name}"], "hidden_size": 40, "vocab_size": 256,
                "num_hidden_layers": 2}}"#
        );
        let config = parse_config(text.as_bytes())?;
        (crate::arch::find(name).expect("registered").spec)(&config)
    }

    fn scan(name: &str, more: &str) -> SelectiveScan {
        let mut spec = spec(name, more).expect("a spec");
        match spec.layers.remove(0).mixer {
            Mixer::SelectiveScan(scan) => scan,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_config_that_leaves_all_out_has_the_usual_sizes() {
        let mamba = scan("MambaForCausalLM", r#""time_step_rank": "auto","#);
        assert_eq!((mamba.channels, mamba.state_dim, mamba.step_rank, mamba.taps), (80, 16, 3, 4));
        assert_eq!(mamba.norms, SelectionNorms::Absent);
        let falcon = scan("FalconMambaForCausalLM", r#""mixer_rms_eps": 1e-3,"#);
        assert_eq!((falcon.norms, falcon.norm_eps), (SelectionNorms::Bare, 1e-3));
    }

    #[test]
    fn configs_that_cannot_be_are_refused_by_the_name_of_the_field() {
        for (field, value, named) in [
            ("state_size", "0", "mamba_d_state"),
            ("state_size", "1025", "mamba_d_state"),
            ("conv_kernel", "0", "mamba_d_conv"),
            ("expand", "65", "mamba_expand"),
            ("time_step_rank", "-1", "mamba_dt_rank"),
            ("hidden_act", "\"gelu\"", "hidden_act"),
            ("use_conv_bias", "1", "mamba_conv_bias"),
            ("mixer_rms_eps", "Infinity", "mixer_rms_eps"),
        ] {
            let error = spec("FalconMambaForCausalLM", &format!(r#""{field}": {value},"#));
            let error = error.expect_err(field).to_string();
            assert!(error.contains(named), "{field}: {error}");
        }
    }
}
