//! The keys of an architecture, and its rotary divisors.

use pelton_quant::WeightFormat;
use pelton_tensor::{GgufValue, GgufWriter};

use crate::arch::ArchSpec;
use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::rope::{RopeScaling, RopeSpec};

/// Numbers that readers use to tell what most of a file is stored as.
const FILE_TYPES: &[(&str, u32)] = &[
    ("F32", 0),
    ("F16", 1),
    ("Q4_0", 2),
    ("Q4_1", 3),
    ("Q8_0", 7),
    ("Q5_0", 8),
    ("Q5_1", 9),
    ("Q2_K", 10),
    ("Q3_K", 11),
    ("Q4_K", 14),
    ("Q5_K", 16),
    ("Q6_K", 18),
    ("IQ2_XXS", 19),
    ("IQ2_XS", 20),
    ("IQ3_XXS", 23),
    ("IQ1_S", 24),
    ("IQ4_NL", 25),
    ("IQ3_S", 26),
    ("IQ2_S", 28),
    ("IQ4_XS", 30),
    ("IQ1_M", 31),
    ("BF16", 32),
    ("TQ1_0", 36),
    ("TQ2_0", 37),
    ("MXFP4", 38),
];

/// The number that stands in `general.file_type` of a file whose matrices are stored as `format`;
/// other engines refuse a file that does not say. `None` where no number exists.
pub fn gguf_file_type(format: &dyn WeightFormat) -> Option<u32> {
    FILE_TYPES.iter().find(|(name, _)| *name == format.name()).map(|(_, number)| *number)
}

pub(super) fn write(
    files: &ModelFiles,
    spec: &ArchSpec,
    format: &dyn WeightFormat,
    writer: &mut GgufWriter,
) -> Result<(), ModelError> {
    let declared = files.arch().gguf_names[0];
    // Mistral's files call themselves `llama`, as every reader expects.
    let arch = if declared == "mistral" { "llama" } else { declared };
    let first = &spec.layers[0];
    let gqa = first.gqa();
    if spec.layers.iter().any(|layer| layer != first) {
        return Err(ModelError::Export("layers that differ from each other".to_owned()));
    }

    let text = |x: &str| GgufValue::String(x.to_owned());
    writer.metadata("general.architecture", text(arch));
    if let Some(name) = files.path().file_name() {
        writer.metadata("general.name", text(&name.to_string_lossy()));
    }
    if let Some(file_type) = gguf_file_type(format) {
        writer.metadata("general.file_type", GgufValue::U32(file_type));
    }
    writer.metadata("general.quantization_version", GgufValue::U32(2));

    let counts = [
        ("vocab_size", spec.vocab_size),
        ("context_length", spec.max_context),
        ("embedding_length", spec.hidden_size),
        ("block_count", spec.layers.len()),
        ("feed_forward_length", first.mlp.intermediate_size()),
        ("rope.dimension_count", gqa.head_dim),
        ("attention.head_count", gqa.n_heads),
        ("attention.head_count_kv", gqa.n_kv_heads),
        ("attention.key_length", gqa.head_dim),
        ("attention.value_length", gqa.head_dim),
    ];
    let mut key = |key: &str, value: GgufValue| {
        writer.metadata(format!("{arch}.{key}"), value);
    };
    for (name, n) in counts {
        key(name, GgufValue::U32(n as u32));
    }
    if let Some(window) = gqa.window {
        key("attention.sliding_window", GgufValue::U32(window as u32));
    }
    key("attention.layer_norm_rms_epsilon", GgufValue::F32(spec.norm_eps));
    let Some(rope) = spec.ropes.first() else { return Ok(()) };
    key("rope.freq_base", number(rope.theta));

    let mut scaling = |kind: &str, factor: f64| {
        key("rope.scaling.type", text(kind));
        key("rope.scaling.factor", number(factor));
    };
    match &rope.scaling {
        RopeScaling::Linear { factor } => scaling("linear", *factor),
        RopeScaling::Dynamic { factor } => scaling("dynamic", *factor),
        RopeScaling::Yarn(yarn) => {
            scaling("yarn", yarn.factor);
            key("rope.scaling.original_context_length", GgufValue::U32(yarn.n_original as u32));
            key("rope.scaling.yarn_beta_fast", number(yarn.beta_fast));
            key("rope.scaling.yarn_beta_slow", number(yarn.beta_slow));
            key("rope.scaling.yarn_truncate", GgufValue::Bool(yarn.truncate));
            let usual = 0.1 * yarn.factor.ln() + 1.0;
            if yarn.attention_factor() != usual {
                key("rope.scaling.attn_factor", GgufValue::F64(yarn.attention_factor() / usual));
            }
        }
        RopeScaling::LongRope { factor, n_original, attention_factor, .. } => {
            scaling("longrope", *factor);
            key("rope.scaling.original_context_length", GgufValue::U32(*n_original as u32));
            if let Some(factor) = attention_factor {
                key("rope.scaling.attn_factor", number(*factor));
            }
        }
        RopeScaling::Default | RopeScaling::Llama3 { .. } | RopeScaling::Divisors(_) => {}
    }
    Ok(())
}

/// A number as f32, as readers expect, unless that would change it.
fn number(x: f64) -> GgufValue {
    if f64::from(x as f32) == x { GgufValue::F32(x as f32) } else { GgufValue::F64(x) }
}

/// Tensors of divisors that the scaling needs.
pub(super) fn divisor_tensors(rope: Option<&RopeSpec>) -> Vec<(&'static str, Vec<f32>)> {
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

/// The number by which `plain` becomes `scaled` once rounded; the nearest one where none does, which
/// is then a last bit off.
fn divisor(plain: f64, scaled: f32) -> f32 {
    let nearest = (plain / f64::from(scaled)) as f32;
    let around = [nearest, nearest.next_up(), nearest.next_down()];
    let gives_it = |by: &f32| (plain / f64::from(*by)) as f32 == scaled;
    around.into_iter().find(gives_it).unwrap_or(nearest)
}
