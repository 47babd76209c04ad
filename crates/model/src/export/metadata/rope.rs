//! Keys of rotary embeddings, and the tensors of divisors that some scalings need.

use super::{Keys, divisor};
use crate::arch::{ArchSpec, Mixer};
use crate::rope::{RopeScaling, RopeSpec};

pub(super) fn write(spec: &ArchSpec, keys: &mut Keys) {
    let Some(rope) = spec.ropes.first() else { return };
    keys.number("rope.freq_base", rope.theta);
    // Layers with a window may rotate by a base of their own.
    if let Some(local) = spec.ropes.get(1) {
        keys.number("rope.freq_base_swa", local.theta);
    }
    let scaling = |keys: &mut Keys, kind: &str, factor: f64| {
        keys.text("rope.scaling.type", kind);
        keys.number("rope.scaling.factor", factor);
    };
    match &rope.scaling {
        RopeScaling::Linear { factor } => scaling(keys, "linear", *factor),
        RopeScaling::Dynamic { factor } => scaling(keys, "dynamic", *factor),
        RopeScaling::Yarn(yarn) => {
            scaling(keys, "yarn", yarn.factor);
            keys.count("rope.scaling.original_context_length", yarn.n_original);
            keys.number("rope.scaling.yarn_beta_fast", yarn.beta_fast);
            keys.number("rope.scaling.yarn_beta_slow", yarn.beta_slow);
            keys.flag("rope.scaling.yarn_truncate", yarn.truncate);
            let usual = 0.1 * yarn.factor.ln() + 1.0;
            // Latent attention has the factor on its scores.
            let is_latent = matches!(spec.layers[0].mixer, Mixer::Mla(_));
            if !is_latent && yarn.attention_factor() != usual {
                keys.number("rope.scaling.attn_factor", yarn.attention_factor() / usual);
            }
        }
        RopeScaling::LongRope { factor, n_original, attention_factor, .. } => {
            scaling(keys, "longrope", *factor);
            keys.count("rope.scaling.original_context_length", *n_original);
            if let Some(factor) = attention_factor {
                keys.number("rope.scaling.attn_factor", *factor);
            }
        }
        // Tensors of divisors say these; no family that is written has the last one.
        RopeScaling::Default
        | RopeScaling::Llama3 { .. }
        | RopeScaling::Divisors(_)
        | RopeScaling::Proportional { .. } => {}
    }
}

/// Tensors of divisors that the scaling needs.
pub(in crate::export) fn divisor_tensors(rope: Option<&RopeSpec>) -> Vec<(&'static str, Vec<f32>)> {
    let Some(rope) = rope else { return Vec::new() };
    match &rope.scaling {
        RopeScaling::Divisors(divisors) => vec![("rope_freqs.weight", divisors.clone())],
        RopeScaling::LongRope { short_factors, long_factors, .. } => vec![
            ("rope_factors_short.weight", short_factors.clone()),
            ("rope_factors_long.weight", long_factors.clone()),
        ],
        RopeScaling::Llama3 { .. } => {
            let plain = rope.frequencies(rope.theta);
            let scaled = rope.table(rope.n_trained).inv_freq;
            let divisors =
                plain.iter().zip(&scaled).map(|(plain, scaled)| divisor(*plain, *scaled));
            vec![("rope_freqs.weight", divisors.collect())]
        }
        _ => Vec::new(),
    }
}
