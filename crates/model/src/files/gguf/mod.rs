//! GGUF metadata, read into the same [`HfConfig`] as a `config.json`.

mod rope;
mod told;

use std::collections::BTreeMap;

use pelton_base::limits;
use pelton_tensor::{GgufArray, GgufValue, TensorSource};
use serde_json::{Map, Value};

use super::names::Naming;
use crate::arch::{self, Part, Stored};
use crate::config::{
    HeadFields, HfConfig, Window, read_act, read_cap, read_eps, read_theta, read_tokens,
    usual_fields,
};
use crate::fields::{ConfigError, Field};
use crate::rope::{RopeScaling, RopeSpec};
use rope::{read_rope, read_rotated_width};
use told::{tell_by_tensors, tell_experts, tell_latent_widths, tell_scales, tell_scores};

/// Longest metadata array that is looked at here, in elements; vocabularies are not.
const MOST_ELEMENTS: usize = 4096;

/// The config that these keys and tensors amount to; of the latter it looks at names and shapes, and at
/// the data of rotary divisors.
pub(crate) fn read_config(
    metadata: &BTreeMap<String, GgufValue>,
    tensors: &dyn TensorSource,
) -> Result<HfConfig, ConfigError> {
    let metadata = scalars(metadata);
    let root = Field::new("", Some(&metadata));
    let name_field = root.get("general.architecture");
    let Some(name) = name_field.text()? else {
        return Err(name_field.error("the name of an architecture"));
    };
    let arch = arch::find_gguf(name).ok_or_else(|| arch::unknown_gguf(name))?;
    let get = |key: &str| root.get(&format!("{name}.{key}"));
    let naming = Naming::of(&arch.gguf);

    let is_latent = get("attention.kv_lora_rank").non_null().is_some();
    let hidden_size = get("embedding_length").count(limits::MODEL_WIDTH)?;
    let heads = HeadFields {
        hidden_size,
        n_heads: get("attention.head_count"),
        n_kv_heads: get("attention.head_count_kv"),
        // As configs of latent attention have it: the width of what is rotated.
        head_dim: get(if is_latent { "rope.dimension_count" } else { "attention.key_length" }),
        default_head_dim: None,
    }
    .read()?;
    let rotary_dim = match is_latent {
        true => heads.head_dim,
        false => read_rotated_width(&get, heads.head_dim, arch.partial_rotary)?,
    };
    let n_trained = get("context_length").count(limits::MODEL_CONTEXT)?;
    let vocab_size = read_vocab_size(tensors, &get("vocab_size"))?;
    let window = match get("attention.sliding_window").non_null() {
        Some(field) => match field.integer(0, limits::MODEL_CONTEXT)? {
            0 => Window::Off,
            n => Window::Tokens(n),
        },
        None => Window::Off,
    };
    // These families' files call themselves as another's; windows and experts tell them apart.
    let has_window = window != Window::Off;
    let has_experts = get("expert_count").non_null().is_some_and(|n| n.integer(0, 0).is_err());
    let relative = match name {
        "llama" if has_experts => Some("mixtral"),
        "llama" if has_window => Some("mistral"),
        "olmo2" if has_window => Some("olmo3"),
        _ => None,
    };
    let relative = relative.map(|name| arch::find(name).expect("invariant: registered"));
    let arch = relative.unwrap_or(arch);
    let eps = ["attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"].map(get);
    let [rms_eps, layer_eps] = &eps;
    let eps = rms_eps.non_null().or(layer_eps.non_null()).unwrap_or(rms_eps);
    let has_bias = |part| tensors.get(&naming.bias(part, 0)).is_some();
    let token = |key: &str| read_tokens(&root.get(&format!("tokenizer.ggml.{key}")), vocab_size);
    let mut eos_tokens = Vec::new();
    for key in ["eos_token_id", "eot_token_id", "eom_token_id"] {
        for id in token(key)? {
            if !eos_tokens.contains(&id) {
                eos_tokens.push(id);
            }
        }
    }

    let num_hidden_layers = read_n_layers(&get)?;
    let sliding_layers = read_sliding_layers(&get(WINDOW_PATTERN), num_hidden_layers)?;
    let mut fields = own_fields(&get);
    fields.insert("hidden_size".to_owned(), Value::from(hidden_size));
    if is_latent {
        tell_latent_widths(&get, heads.head_dim, &mut fields)?;
        tell_scores(&get, &mut fields)?;
    }
    if has_experts {
        tell_experts(tensors, name, num_hidden_layers, &mut fields);
    }
    if name.starts_with("minicpm") {
        tell_scales(&mut fields);
    }
    tell_by_tensors(tensors, naming, &heads, &mut fields);
    let fields = usual_fields(arch, Value::Object(fields));
    let field = |name: &str| Field::new(name, fields.get(name));
    let window = match (window, field("sliding_window").non_null()) {
        // Whether the file does not say, or says that there is none.
        (Window::Off, Some(usual)) if get("attention.sliding_window").non_null().is_none() => {
            Window::Tokens(usual.count(limits::MODEL_CONTEXT)?)
        }
        (window, _) => window,
    };
    let local_theta = field("rope_local_base_freq");
    let local_rope = match local_theta.non_null() {
        Some(theta) => Some(RopeSpec {
            rotary_dim,
            theta: read_theta(theta)?,
            n_trained,
            scaling: RopeScaling::Default,
        }),
        None => None,
    };

    Ok(HfConfig {
        architecture: arch.names[0].to_owned(),
        wrapper: None,
        hidden_size,
        intermediate_size: get("feed_forward_length").count(limits::MODEL_WIDTH)?,
        num_hidden_layers,
        num_attention_heads: heads.n_heads,
        num_key_value_heads: heads.n_kv_heads,
        head_dim: heads.head_dim,
        vocab_size,
        max_position_embeddings: n_trained,
        rms_norm_eps: read_eps(eps)?,
        hidden_act: read_act(&field("hidden_act"))?,
        sliding_window: window,
        use_sliding_window: has_window,
        max_window_layers: 0,
        sliding_layers,
        attention_bias: Some([Part::Q, Part::Qkv, Part::KvDown].into_iter().any(has_bias)),
        mlp_bias: has_bias(Part::Up),
        tie_word_embeddings: tensors.get(&naming.weight(Part::Head, 0)).is_none(),
        final_logit_softcapping: read_cap(&field("final_logit_softcapping"))?,
        rope: read_rope(tensors, &get, rotary_dim, n_trained, field("yarn_truncate").flag(true)?)?,
        local_rope,
        fields: fields.clone(),
        bos_token: token("bos_token_id")?.first().copied(),
        eos_tokens,
    })
}

/// Every short metadata value as JSON, so that fields of both kinds of file are read alike.
fn scalars(metadata: &BTreeMap<String, GgufValue>) -> Value {
    let float = |x: f64| {
        serde_json::Number::from_f64(x).map_or_else(|| Value::from(x.to_string()), Value::Number)
    };
    let mut map = Map::new();
    for (key, value) in metadata {
        let value = match value {
            GgufValue::F32(x) => float(decimal(*x)),
            GgufValue::F64(x) => float(*x),
            GgufValue::Bool(x) => Value::Bool(*x),
            GgufValue::String(text) => Value::String(text.clone()),
            GgufValue::Array(array) if array.len() > MOST_ELEMENTS => continue,
            GgufValue::Array(GgufArray::I32(list)) => Value::from(list.clone()),
            GgufValue::Array(GgufArray::U32(list)) => Value::from(list.clone()),
            GgufValue::Array(GgufArray::Bool(list)) => Value::from(list.clone()),
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

/// The number that was meant by one stored in f32: the shortest that becomes it, as configs have it.
pub(crate) fn decimal(x: f32) -> f64 {
    let meant = x.to_string().parse().unwrap_or(f64::from(x));
    if meant as f32 == x { meant } else { f64::from(x) }
}

/// The rows of the embedding table; a key that says otherwise is a damaged file.
fn read_vocab_size(tensors: &dyn TensorSource, key: &Field<'_>) -> Result<usize, ConfigError> {
    let name = Naming::of(&Stored::GGUF).weight(Part::Embedding, 0);
    let Some(table) = tensors.get(&name) else {
        return Err(Field::new(name, None).error("the embedding table"));
    };
    let n_rows = Value::from(table.shape.first().copied().unwrap_or(0));
    let n_rows = Field::new(format!("{name} rows"), Some(&n_rows)).count(limits::MODEL_VOCAB)?;
    if key.non_null().is_some() && key.count(limits::MODEL_VOCAB)? != n_rows {
        return Err(key.error(format!("{n_rows}, the rows of `{name}`")));
    }
    Ok(n_rows)
}

/// Layers but for those that guess further tokens, which come last and are left alone.
fn read_n_layers<'a>(get: &dyn Fn(&str) -> Field<'a>) -> Result<usize, ConfigError> {
    let n_layers = get("block_count").count(limits::MODEL_LAYERS)?;
    match get("nextn_predict_layers").non_null() {
        Some(field) => Ok(n_layers - field.integer(0, n_layers - 1)?),
        None => Ok(n_layers),
    }
}

/// Which layers have a window, where the file lists them; a number is left to the family.
fn read_sliding_layers(
    pattern: &Field<'_>,
    n_layers: usize,
) -> Result<Option<Vec<bool>>, ConfigError> {
    let Some(Value::Array(items)) = pattern.value() else { return Ok(None) };
    let flags: Option<Vec<bool>> = items.iter().map(Value::as_bool).collect();
    match flags.filter(|flags| flags.len() == n_layers) {
        Some(flags) => Ok(Some(flags)),
        None => Err(pattern.error(format!("true or false for each of the {n_layers} layers"))),
    }
}

/// Every how many layers one has no window, or which layers have one.
const WINDOW_PATTERN: &str = "attention.sliding_window_pattern";

/// Keys of what only some families have, and how `config.json` calls it.
const OWN_FIELDS: &[(&str, &str)] = &[
    ("attn_logit_softcapping", "attn_logit_softcapping"),
    ("final_logit_softcapping", "final_logit_softcapping"),
    ("attention_multiplier", "attention.scale"),
    ("embedding_multiplier", "embedding_scale"),
    ("residual_multiplier", "residual_scale"),
    // Command R multiplies by it, Granite divides.
    ("logit_scale", "logit_scale"),
    ("logits_scaling", "logit_scale"),
    ("clip_qkv", "attention.clamp_kqv"),
    ("use_parallel_residual", "use_parallel_residual"),
    ("sliding_window_pattern", WINDOW_PATTERN),
    ("rotary_dim", "rope.dimension_count"),
    ("rope_local_base_freq", "rope.freq_base_swa"),
    ("q_lora_rank", "attention.q_lora_rank"),
    ("kv_lora_rank", "attention.kv_lora_rank"),
    ("num_experts", "expert_count"),
    ("num_experts_per_tok", "expert_used_count"),
    ("moe_intermediate_size", "expert_feed_forward_length"),
    ("shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
    ("shared_intermediate_size", "expert_shared_feed_forward_length"),
    ("n_shared_experts", "expert_shared_count"),
    ("norm_topk_prob", "expert_weights_norm"),
    ("routed_scaling_factor", "expert_weights_scale"),
    ("n_group", "expert_group_count"),
    ("topk_group", "expert_group_used_count"),
    ("first_k_dense_replace", "leading_dense_block_count"),
    ("interleave_moe_layer_step", "interleave_moe_layer_step"),
    ("expert_gating_func", "expert_gating_func"),
    ("floor_scale", "attention.temperature_length"),
    ("attn_scale", "attention.temperature_scale"),
];

fn own_fields<'a>(get: &dyn Fn(&str) -> Field<'a>) -> Map<String, Value> {
    let value = |(name, key): &(&str, &str)| {
        let value = get(key).value().filter(|value| *key != WINDOW_PATTERN || !value.is_array())?;
        Some(((*name).to_owned(), value.clone()))
    };
    OWN_FIELDS.iter().filter_map(value).collect()
}
