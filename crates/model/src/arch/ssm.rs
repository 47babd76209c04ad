//! The fields by which configs describe a Mamba 2 mixer (Dao and Gu, 2024), and the names of its tensors.

use pelton_base::limits;

use super::{Gate, LayerSpec, Mixer, Recurrent, Rule, ValueHeads};
use crate::config::HfConfig;
use crate::fields::{ConfigError, Field};

/// The names of a mixer's tensors under this prefix, and other names of the family.
macro_rules! names {
    ($prefix:literal $(, $more:expr)* $(,)?) => {
        &[
            (Part::RecurrentIn, concat!($prefix, ".in_proj")),
            (Part::Conv, concat!($prefix, ".conv1d")),
            (Part::Decay, concat!($prefix, ".A_log")),
            (Part::DecayBias, concat!($prefix, ".dt_bias")),
            (Part::Skip, concat!($prefix, ".D")),
            (Part::GatedNorm, concat!($prefix, ".norm")),
            (Part::RecurrentOut, concat!($prefix, ".out_proj")),
            $($more,)*
        ]
    };
}
pub(super) use names;

/// Kinds of layers that `layer_types` names in these families.
pub(super) const KINDS: &[&str] = &["mamba", "attention", "linear_attention"];

/// Whether `layer_types` calls a layer one with attention.
pub(super) fn attends(kind: &str) -> bool {
    matches!(kind, "attention" | "full_attention")
}

/// The mixer as the fields `mamba_*` describe it.
pub(super) fn read(cfg: &HfConfig) -> Result<Recurrent, ConfigError> {
    let n_value_heads = cfg.field("mamba_n_heads").count(limits::STATE_HEADS)?;
    let dim_field = cfg.field("mamba_d_head");
    let is_said = dim_field.non_null().is_some() && !matches!(dim_field.text(), Ok(Some("auto")));
    let value_dim = match is_said {
        true => dim_field.count(limits::STATE_HEAD_DIM)?,
        false => {
            let expand = cfg.field("mamba_expand");
            let expand = expand.non_null().map_or(Ok(2), |field| field.count(64))?;
            let inner = match cfg.field("mamba_d_ssm").non_null() {
                Some(inner) => inner.count(limits::MODEL_WIDTH)?,
                None => expand * cfg.hidden_size,
            };
            if !inner.is_multiple_of(n_value_heads) {
                let field = cfg.field("mamba_n_heads");
                return Err(field.error(format!("a divisor of the inner width, {inner}")));
            }
            inner / n_value_heads
        }
    };
    let groups = cfg.field("mamba_n_groups");
    let n_key_heads = groups.non_null().map_or(Ok(1), |field| field.count(limits::STATE_HEADS))?;
    if !n_value_heads.is_multiple_of(n_key_heads) {
        return Err(groups.error(format!("a divisor of the {n_value_heads} heads")));
    }
    let key_dim = cfg.field("mamba_d_state").count(limits::STATE_HEAD_DIM)?;
    if n_value_heads * value_dim.max(key_dim) > limits::MODEL_WIDTH {
        let expected = format!("at most {} elements in all heads", limits::MODEL_WIDTH);
        return Err(cfg.field("mamba_n_heads").error(expected));
    }
    let taps = cfg.field("mamba_d_conv");
    let bias = cfg.flag("mamba_proj_bias", false)?;
    Ok(Recurrent {
        n_key_heads,
        n_value_heads,
        order: ValueHeads::Grouped,
        key_dim,
        value_dim,
        taps: taps.non_null().map_or(Ok(4), |field| field.count(limits::CONV_TAPS))?,
        rule: Rule::Sum { dt_limits: step_limits(cfg)? },
        conv_bias: cfg.flag("mamba_conv_bias", true)?,
        bias,
        out_bias: bias,
        has_skip: true,
        gate: Gate::BeforeNorm { n_groups: n_key_heads },
        norm_eps: cfg.rms_norm_eps,
    })
}

/// `time_step_limit`: least and greatest time step, the second of which may be infinite.
fn step_limits(cfg: &HfConfig) -> Result<[f32; 2], ConfigError> {
    let field = cfg.field("time_step_limit");
    let Some(value) = field.non_null().and_then(Field::value) else {
        return Ok([0.0, f32::INFINITY]);
    };
    // transformers writes a number that is none as `{"__float__": "Infinity"}`.
    let number = |value: &serde_json::Value| match value.get("__float__").unwrap_or(value).as_str()
    {
        Some("Infinity" | "inf") => Some(f32::INFINITY),
        _ => value.as_f64().map(|x| x as f32),
    };
    let limits = value.as_array().map(|items| items.iter().map(number).collect::<Vec<_>>());
    match limits.as_deref() {
        Some(&[Some(least), Some(most)]) if least >= 0.0 && most > least => Ok([least, most]),
        _ => Err(field.error("the least time step, at least 0, and a greater one")),
    }
}

/// Puts the mixer in the place of attention.
pub(super) fn put(layer: &mut LayerSpec, ssm: &Recurrent) {
    layer.mixer = Mixer::Recurrent(ssm.clone());
}
