//! GGUF metadata, read into the same [`HfConfig`] as a `config.json`.

use pelton_base::limits;
use pelton_tensor::{Gguf, GgufArray, GgufValue, TensorSource};
use serde_json::{Map, Value};

use super::names::Naming;
use crate::arch::{self, Act, Part, Stored};
use crate::config::{HeadFields, HfConfig, Window, read_eps, read_factor, read_theta, read_tokens};
use crate::fields::{ConfigError, Field};
use crate::rope::{RopeScaling, RopeSpec, Yarn};

/// Longest metadata array that is looked at here, in elements; vocabularies are not.
const MOST_ELEMENTS: usize = 4096;

pub(super) fn read_config(gguf: &Gguf) -> Result<HfConfig, ConfigError> {
    let metadata = scalars(gguf);
    let root = Field::new("", Some(&metadata));
    let name_field = root.get("general.architecture");
    let Some(name) = name_field.text()? else {
        return Err(name_field.error("the name of an architecture"));
    };
    let arch = arch::find_gguf(name).ok_or_else(|| arch::unknown_gguf(name))?;
    let get = |key: &str| root.get(&format!("{name}.{key}"));

    let hidden_size = get("embedding_length").count(limits::MODEL_WIDTH)?;
    let heads = HeadFields {
        hidden_size,
        n_heads: get("attention.head_count"),
        n_kv_heads: get("attention.head_count_kv"),
        head_dim: get("attention.key_length"),
        default_head_dim: None,
    }
    .read()?;
    check_rotated_width(&get, heads.head_dim)?;
    let n_trained = get("context_length").count(limits::MODEL_CONTEXT)?;
    let vocab_size = read_vocab_size(gguf, &get("vocab_size"))?;
    let window = match get("attention.sliding_window").non_null() {
        Some(field) => match field.integer(0, limits::MODEL_CONTEXT)? {
            0 => Window::Off,
            n => Window::Tokens(n),
        },
        None => Window::Off,
    };
    // Mistral's files call themselves `llama`; a window is what tells them apart.
    let has_window = window != Window::Off;
    let arch = if name == "llama" && has_window {
        arch::find("mistral").expect("invariant: registered")
    } else {
        arch
    };
    let eps = get("attention.layer_norm_rms_epsilon");
    let naming = Naming::of(&arch.gguf);
    let has_bias = |part| gguf.get(&naming.bias(part, 0)).is_some();
    let token = |key: &str| read_tokens(&root.get(&format!("tokenizer.ggml.{key}")), vocab_size);
    let mut eos_tokens = Vec::new();
    for key in ["eos_token_id", "eot_token_id", "eom_token_id"] {
        for id in token(key)? {
            if !eos_tokens.contains(&id) {
                eos_tokens.push(id);
            }
        }
    }

    Ok(HfConfig {
        architecture: arch.names[0].to_owned(),
        hidden_size,
        intermediate_size: get("feed_forward_length").count(limits::MODEL_WIDTH)?,
        num_hidden_layers: get("block_count").count(limits::MODEL_LAYERS)?,
        num_attention_heads: heads.n_heads,
        num_key_value_heads: heads.n_kv_heads,
        head_dim: heads.head_dim,
        vocab_size,
        max_position_embeddings: n_trained,
        rms_norm_eps: read_eps(&eps)?,
        hidden_act: Act::Silu,
        sliding_window: window,
        use_sliding_window: has_window,
        max_window_layers: 0,
        sliding_layers: None,
        attention_bias: Some(has_bias(Part::Q)),
        mlp_bias: has_bias(Part::Up),
        tie_word_embeddings: gguf.get(&naming.weight(Part::Head, 0)).is_none(),
        final_logit_softcapping: None,
        rope: read_rope(gguf, &get, heads.head_dim, n_trained)?,
        local_rope: None,
        fields: Value::Null,
        bos_token: token("bos_token_id")?.first().copied(),
        eos_tokens,
    })
}

/// Every short metadata value as JSON, so that fields of both kinds of file are read alike.
fn scalars(gguf: &Gguf) -> Value {
    let float = |x: f64| {
        serde_json::Number::from_f64(x).map_or_else(|| Value::from(x.to_string()), Value::Number)
    };
    let mut map = Map::new();
    for (key, value) in gguf.metadata() {
        let value = match value {
            GgufValue::F32(x) => float(f64::from(*x)),
            GgufValue::F64(x) => float(*x),
            GgufValue::Bool(x) => Value::Bool(*x),
            GgufValue::String(text) => Value::String(text.clone()),
            GgufValue::Array(array) if array.len() > MOST_ELEMENTS => continue,
            GgufValue::Array(GgufArray::I32(list)) => Value::from(list.clone()),
            GgufValue::Array(GgufArray::U32(list)) => Value::from(list.clone()),
            GgufValue::Array(array) => Value::String(format!("an array of {}", array.type_name())),
            GgufValue::U64(x) => Value::from(*x),
            other => match other.as_i128().and_then(|x| i64::try_from(x).ok()) {
                Some(x) => Value::from(x),
                None => continue,
            },
        };
        map.insert(key.clone(), value);
    }
    Value::Object(map)
}

/// The rows of the embedding table; a key that says otherwise is a damaged file.
fn read_vocab_size(gguf: &Gguf, key: &Field<'_>) -> Result<usize, ConfigError> {
    let name = Naming::of(&Stored::GGUF).weight(Part::Embedding, 0);
    let Some(table) = gguf.get(&name) else {
        return Err(Field::new(name, None).error("the embedding table"));
    };
    let n_rows = Value::from(table.shape.first().copied().unwrap_or(0));
    let n_rows = Field::new(format!("{name} rows"), Some(&n_rows)).count(limits::MODEL_VOCAB)?;
    if key.non_null().is_some() && key.count(limits::MODEL_VOCAB)? != n_rows {
        return Err(key.error(format!("{n_rows}, the rows of `{name}`")));
    }
    Ok(n_rows)
}

fn check_rotated_width<'a>(
    get: &dyn Fn(&str) -> Field<'a>,
    head_dim: usize,
) -> Result<(), ConfigError> {
    for key in ["rope.dimension_count", "attention.value_length"] {
        let field = get(key);
        if field.non_null().is_some() && field.count(limits::MODEL_WIDTH)? != head_dim {
            return Err(field.error(format!("the width of a head, {head_dim}")));
        }
    }
    Ok(())
}

fn read_rope<'a>(
    gguf: &Gguf,
    get: &dyn Fn(&str) -> Field<'a>,
    head_dim: usize,
    n_trained: usize,
) -> Result<RopeSpec, ConfigError> {
    let optional = |key: &str, min: f64, max: f64| match get(key).non_null() {
        Some(field) => field.number(min, max).map(Some),
        None => Ok(None),
    };
    let theta = match get("rope.freq_base").non_null() {
        Some(field) => read_theta(field)?,
        None => 10_000.0,
    };
    let n_original = match get("rope.scaling.original_context_length").non_null() {
        Some(field) => field.count(limits::MODEL_CONTEXT)?,
        None => n_trained,
    };
    let kind = get("rope.scaling.type");
    let factor = || read_factor(&get("rope.scaling.factor"));
    let scaling = match kind.text()? {
        None | Some("none" | "") => match read_divisors(gguf, "rope_freqs.weight", head_dim)? {
            Some(divisors) => RopeScaling::Divisors(divisors),
            None => match get("rope.scale_linear").non_null() {
                Some(field) => RopeScaling::Linear { factor: read_factor(field)? },
                None => RopeScaling::Default,
            },
        },
        Some("linear") => RopeScaling::Linear { factor: factor()? },
        Some("dynamic") => RopeScaling::Dynamic { factor: factor()? },
        Some("yarn") => {
            let factor = factor()?;
            let usual = 0.1 * factor.ln() + 1.0;
            RopeScaling::Yarn(Yarn {
                factor,
                n_original,
                // The key scales the usual factor instead of replacing it.
                attention_factor: optional("rope.scaling.attn_factor", 0.0, 1e3)?
                    .map(|weight| weight * usual),
                mscale: None,
                mscale_all_dim: None,
                beta_fast: optional("rope.scaling.yarn_beta_fast", 1e-6, 1e6)?.unwrap_or(32.0),
                beta_slow: optional("rope.scaling.yarn_beta_slow", 1e-6, 1e6)?.unwrap_or(1.0),
                truncate: get("rope.scaling.yarn_truncate").flag(true)?,
            })
        }
        Some("longrope") => {
            let divisors = |name: &str| {
                read_divisors(gguf, name, head_dim)?.ok_or_else(|| {
                    Field::new(name, None).error(format!("a tensor of {} numbers", head_dim / 2))
                })
            };
            RopeScaling::LongRope {
                factor: match get("rope.scaling.factor").non_null() {
                    Some(field) => read_factor(field)?,
                    None => (n_trained as f64 / n_original as f64).max(1.0),
                },
                n_original,
                attention_factor: optional("rope.scaling.attn_factor", 0.0, 1e3)?,
                short_factors: divisors("rope_factors_short.weight")?,
                long_factors: divisors("rope_factors_long.weight")?,
            }
        }
        Some(_) => return Err(kind.error("one of none, linear, yarn, longrope, dynamic")),
    };
    Ok(RopeSpec { rotary_dim: head_dim, theta, n_trained, scaling })
}

/// A tensor with one finite positive divisor per rotated pair.
fn read_divisors(
    gguf: &Gguf,
    name: &str,
    head_dim: usize,
) -> Result<Option<Vec<f32>>, ConfigError> {
    let Some(view) = gguf.get(name) else { return Ok(None) };
    let error = |found: String| ConfigError::Field {
        field: name.to_owned(),
        expected: format!("a tensor of {} positive f32", head_dim / 2),
        found,
    };
    if view.dtype != pelton_tensor::DType::F32 || view.n_elements() != head_dim / 2 {
        return Err(error(format!("{} {:?}", view.dtype, view.shape)));
    }
    let divisors: Vec<f32> =
        view.data.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    match divisors.iter().find(|x| !(1e-6..=1e6).contains(*x)) {
        Some(bad) => Err(error(bad.to_string())),
        None => Ok(Some(divisors)),
    }
}
