//! Gemma 3n, text models (Gemma Team, 2025): several residual streams, of which layers read one, a
//! residual of low rank beside attention, perceptrons of which few gates stay, vectors of each token for
//! every layer, and last layers that read the keys and values of earlier ones.

use pelton_base::limits;
use serde_json::Value;

use super::{Arch, ArchSpec, LayerInputs, Mlp, Part, Preset, QkNorm, Stored, Streams, Wiring};
use super::{gemma, gemma4};
use crate::config::{HfConfig, read_act, read_cuts};
use crate::fields::ConfigError;

pub(super) const ARCH: Arch = Arch {
    names: &["Gemma3nForCausalLM"],
    model_types: &["gemma3n_text"],
    gguf_names: &["gemma3n"],
    defaults: &[
        ("tie_word_embeddings", Preset::Flag(true)),
        ("hidden_activation", Preset::Text("gelu_pytorch_tanh")),
        ("head_dim", Preset::Number(256.0)),
        ("sliding_window", Preset::Number(512.0)),
        ("rope_theta", Preset::Number(1e6)),
        ("rope_local_base_freq", Preset::Number(1e4)),
        ("final_logit_softcapping", Preset::Number(30.0)),
        ("hidden_size_per_layer_input", Preset::Number(256.0)),
        ("vocab_size_per_layer_input", Preset::Number(262_144.0)),
        ("altup_num_inputs", Preset::Number(4.0)),
        ("altup_active_idx", Preset::Number(0.0)),
        ("laurel_rank", Preset::Number(64.0)),
    ],
    lists_widths: true,
    hf: Stored {
        names: &[
            (Part::AttentionPostNorm, "post_attention_layernorm"),
            (Part::MlpNorm, "pre_feedforward_layernorm"),
            (Part::MlpPostNorm, "post_feedforward_layernorm"),
        ],
        ..Stored::HF
    },
    spec,
    ..Arch::PLAIN
};

/// Layers that store no keys and values, and layers of which few gates stay, where a config does not say.
const USUAL_SHARED: usize = 15;
const USUAL_SPARSE: usize = 10;

fn spec(cfg: &HfConfig) -> Result<ArchSpec, ConfigError> {
    cfg.expect_flag("use_bidirectional_attention", false)?;
    let mut spec = gemma::shared(cfg)?;
    spec.set_windows(cfg, |layer| (layer + 1) % 5 != 0);
    spec.ropes.extend(cfg.local_rope.clone());
    let local = spec.ropes.len() - 1;
    for layer in &mut spec.layers {
        layer.wiring = Wiring::SANDWICH;
        let gqa = layer.gqa_mut();
        gqa.scale = 1.0;
        gqa.qk_norm = Some(QkNorm::HeadRms);
        gqa.norms_values = true;
        gqa.rope = Some(if gqa.window.is_some() { local } else { 0 });
    }
    let n_layers = spec.layers.len();
    gemma4::share_pages(&mut spec, cfg, if n_layers > USUAL_SHARED { USUAL_SHARED } else { 0 })?;
    let (widths, cuts) = (widths(cfg)?, cuts(cfg)?);
    for ((layer, width), cut) in spec.layers.iter_mut().zip(widths).zip(cuts) {
        if let Mlp::Gated(mlp) = &mut layer.mlp {
            (mlp.intermediate_size, mlp.cut) = (width, cut);
        }
    }
    spec.layer_inputs = Some(LayerInputs {
        width: cfg.field("hidden_size_per_layer_input").count(limits::MODEL_WIDTH)?,
        n_rows: cfg.field("vocab_size_per_layer_input").count(limits::MODEL_VOCAB)?,
        act: read_act(&cfg.field("hidden_activation"))?,
    });
    spec.streams = Some(streams(cfg)?);
    Ok(spec)
}

/// Streams, and the residual beside attention. The bound of coefficients is one of training alone.
fn streams(cfg: &HfConfig) -> Result<Streams, ConfigError> {
    let n = cfg.field("altup_num_inputs").integer(2, Streams::MOST)?;
    Ok(Streams {
        n,
        active: cfg.field("altup_active_idx").integer(0, n - 1)?,
        rank: cfg.field("laurel_rank").count(limits::MODEL_WIDTH)?,
        is_scaled: cfg.flag("altup_correct_scale", true)?,
    })
}

/// The width of each layer's perceptron.
fn widths(cfg: &HfConfig) -> Result<Vec<usize>, ConfigError> {
    let (field, n_layers) = (cfg.field("intermediate_size"), cfg.num_hidden_layers);
    let Some(Value::Array(items)) = field.value() else {
        return Ok(vec![cfg.intermediate_size; n_layers]);
    };
    let width = |item| field.with(item).count(limits::MODEL_WIDTH);
    let widths = items.iter().map(width).collect::<Result<Vec<_>, _>>()?;
    match widths.len() == n_layers {
        true => Ok(widths),
        false => Err(field.error(format!("a width, or one for each of the {n_layers} layers"))),
    }
}

/// By how many standard deviations above their mean the gates of each layer are cut, where they are: those
/// that leave the part of gates that the config wants to be dropped, if gates are normally distributed.
fn cuts(cfg: &HfConfig) -> Result<Vec<Option<f32>>, ConfigError> {
    /// Parts that are dropped, if any are.
    const LEAST: f32 = 1e-4;
    const MOST: f64 = 0.9999;
    let n_layers = cfg.num_hidden_layers;
    // GGUF files say the number of deviations itself.
    let told = cfg.field("activation_sparsity_scale");
    if told.non_null().is_some() {
        return read_cuts(&told, n_layers);
    }
    let field = cfg.field("activation_sparsity_pattern");
    if field.non_null().is_none() {
        let n_sparse = if n_layers > USUAL_SPARSE { USUAL_SPARSE } else { 0 };
        let cut = normal_quantile(0.95);
        return Ok((0..n_layers).map(|layer| (layer < n_sparse).then_some(cut)).collect());
    }
    let parts = field.numbers(n_layers, 0.0, MOST)?;
    if parts.iter().any(|part| *part > 0.0 && *part < LEAST) {
        return Err(field.error(format!("0 or at least {LEAST} for each layer")));
    }
    let cut = |part: f32| (part > 0.0).then(|| normal_quantile(f64::from(part)));
    Ok(parts.into_iter().map(cut).collect())
}

/// The point below which this part of the standard normal distribution lies, by bisection; `part` is from
/// 1e-5 to 1 - 1e-5.
fn normal_quantile(part: f64) -> f32 {
    let (mut low, mut high) = (-5.0, 5.0);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        *(if normal_part_below(middle) < part { &mut low } else { &mut high }) = middle;
    }
    (0.5 * (low + high)) as f32
}

/// `1/2 + φ(x) (x + x³ / 3 + x⁵ / (3 · 5) + ..)` (Marsaglia, 2004).
fn normal_part_below(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    let mut n = 1.0;
    while term.abs() > 1e-18 {
        n += 2.0;
        term *= x * x / n;
        sum += term;
    }
    let density = (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
    0.5 + density * sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_tables() {
        for (part, point) in
            [(0.95, 1.644_853_6), (0.5, 0.0), (0.1, -1.281_551_6), (0.999, 3.090_232_3)]
        {
            assert!((normal_quantile(part) - point).abs() < 3e-7, "{part}");
        }
    }
}
