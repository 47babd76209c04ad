//! GGUF metadata, read into the same [`HfConfig`] as a `config.json`.

mod gemma3n;
mod gemma4;
mod hybrid;
mod rope;
mod told;

use std::collections::BTreeMap;

use pelton_base::{TokenId, limits};
use pelton_tensor::{GgufArray, GgufValue, TensorSource};
use serde_json::{Map, Value};

use super::names::Naming;
use crate::arch::{self, Arch, Part, Stored};
use crate::config::{
    HeadFields, Heads, HfConfig, Window, read_act, read_cap, read_eps, read_theta, read_tokens,
    usual_fields,
};
use crate::fields::{ConfigError, Field};
use crate::rope::{RopeScaling, RopeSpec};
use hybrid::{Mixers, read_flags};
use rope::{read_rope, read_rotated_width};
use told::{
    tell_by_tensors, tell_encoder_decoder, tell_experts, tell_latent_widths, tell_scales,
    tell_scores,
};

/// Longest metadata array that is looked at here, in elements; vocabularies are not.
const MOST_ELEMENTS: usize = 4096;

/// A file's keys and tensors, and the family that the file names.
struct Source<'a> {
    root: Field<'a>,
    /// The name of the family, with which its keys begin.
    name: &'a str,
    naming: Naming,
    tensors: &'a dyn TensorSource,
}

impl<'a> Source<'a> {
    /// A key of the family.
    fn get(&self, key: &str) -> Field<'a> {
        self.root.get(&format!("{}.{key}", self.name))
    }

    fn is_latent(&self) -> bool {
        self.get("attention.kv_lora_rank").non_null().is_some()
    }

    fn has_experts(&self) -> bool {
        self.get("expert_count").non_null().is_some_and(|n| n.integer(0, 0).is_err())
    }
}

/// Reads these keys and tensors as a config. Of the tensors it looks at names and shapes, and at
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
    let named = arch::find_gguf(name).ok_or_else(|| arch::unknown_gguf(name))?;
    let naming = Naming::of(&named.gguf);
    let source = Source { root, name, naming, tensors };
    let get = |key: &str| source.get(key);

    let hidden_size = get("embedding_length").count(limits::MODEL_WIDTH)?;
    let num_hidden_layers = read_n_layers(&get)?;
    let mixers = Mixers::read(&source, named, num_hidden_layers)?;
    let sizes = match name == gemma4::NAME {
        true => Some(gemma4::Sizes::read(&source, num_hidden_layers)?),
        false => None,
    };
    let (heads, rotary_dim) = match &sizes {
        Some(sizes) => sizes.heads(&source, hidden_size)?,
        None => read_heads(&source, &mixers, hidden_size, named.partial_rotary)?,
    };
    let n_trained = get("context_length").count(limits::MODEL_CONTEXT)?;
    let vocab_size = read_vocab_size(tensors, &get("vocab_size"))?;
    let window = read_window(&get("attention.sliding_window"))?;
    let has_window = matches!(window, Window::Tokens(_));
    let arch = relative(name, source.has_experts(), has_window).unwrap_or(named);
    let eps = ["attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"].map(get);
    let [rms_eps, layer_eps] = &eps;
    let eps = rms_eps.non_null().or(layer_eps.non_null()).unwrap_or(rms_eps);
    let eos_tokens = read_eos_tokens(&source, vocab_size)?;
    let sliding_layers = read_sliding_layers(&get(WINDOW_PATTERN), num_hidden_layers)?;
    let mut fields = told_fields(&source, hidden_size, &heads, num_hidden_layers)?;
    mixers.tell(&source, num_hidden_layers, &mut fields)?;
    if let Some(sizes) = &sizes {
        sizes.tell(&source, &mut fields)?;
    }
    if name == gemma3n::NAME {
        gemma3n::tell(&source, num_hidden_layers, &mut fields)?;
    }
    let fields = usual_fields(arch, Value::Object(fields));
    let field = |name: &str| Field::new(name, fields.get(name));
    let window = match (window, field("sliding_window").non_null()) {
        // The file leaves it to the family: a window of 0 would say that there is none.
        (Window::Absent, Some(usual)) => Window::Tokens(usual.count(limits::MODEL_CONTEXT)?),
        (Window::Absent, None) => Window::Off,
        (window, _) => window,
    };
    let global_dim = sizes.as_ref().map_or(rotary_dim, |sizes| sizes.head_dims[1]);
    let local_rope = read_local_rope(&field("rope_local_base_freq"), rotary_dim, n_trained)?;
    let has_bias =
        |part| (0..num_hidden_layers).any(|layer| tensors.get(&naming.bias(part, layer)).is_some());

    Ok(HfConfig {
        architecture: arch.names[0].to_owned(),
        wrapper: None,
        hidden_size,
        intermediate_size: match &sizes {
            Some(sizes) => sizes.ffn,
            None if name == gemma3n::NAME => gemma3n::read_ffn(&source, num_hidden_layers)?,
            None => mixers.read_ffn(&source)?,
        },
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
        rope: read_rope(tensors, &get, global_dim, n_trained, field("yarn_truncate").flag(true)?)?,
        local_rope,
        fields: fields.clone(),
        bos_token: read_token_key(&source, "bos_token_id", vocab_size)?.first().copied(),
        eos_tokens,
    })
}

/// The heads, and how many elements of each are rotated.
fn read_heads(
    source: &Source<'_>,
    mixers: &Mixers,
    hidden_size: usize,
    may_be_partial: bool,
) -> Result<(Heads, usize), ConfigError> {
    let get = |key: &str| source.get(key);
    let is_latent = source.is_latent();
    let said = HeadFields {
        hidden_size,
        n_heads: get("attention.head_count"),
        n_kv_heads: get("attention.head_count_kv"),
        // Configs of latent attention call the rotated width so.
        head_dim: get(if is_latent { "rope.dimension_count" } else { "attention.key_length" }),
        default_head_dim: None,
    };
    let heads = mixers.heads(said).read()?;
    let rotary_dim = match is_latent {
        true => heads.head_dim,
        false => read_rotated_width(&get, heads.head_dim, may_be_partial)?,
    };
    Ok((heads, rotary_dim))
}

/// The window that a file declares; 0 stands for none.
fn read_window(field: &Field<'_>) -> Result<Window, ConfigError> {
    let Some(field) = field.non_null() else { return Ok(Window::Absent) };
    match field.integer(0, limits::MODEL_CONTEXT)? {
        0 => Ok(Window::Off),
        n => Ok(Window::Tokens(n)),
    }
}

/// The family whose files bear another family's name; windows and experts tell the two apart.
fn relative(name: &str, has_experts: bool, has_window: bool) -> Option<&'static Arch> {
    let relative = match name {
        "llama" if has_experts => "mixtral",
        "llama" if has_window => "mistral",
        "olmo2" if has_window => "olmo3",
        _ => return None,
    };
    Some(arch::find(relative).expect("invariant: registered"))
}

/// The tokens of a key of the tokenizer.
fn read_token_key(
    source: &Source<'_>,
    key: &str,
    vocab_size: usize,
) -> Result<Vec<TokenId>, ConfigError> {
    read_tokens(&source.root.get(&format!("tokenizer.ggml.{key}")), vocab_size)
}

/// Tokens that end an answer, a message or a text, each once.
fn read_eos_tokens(source: &Source<'_>, vocab_size: usize) -> Result<Vec<TokenId>, ConfigError> {
    let mut tokens = Vec::new();
    for key in ["eos_token_id", "eot_token_id", "eom_token_id"] {
        for id in read_token_key(source, key, vocab_size)? {
            if !tokens.contains(&id) {
                tokens.push(id);
            }
        }
    }
    Ok(tokens)
}

/// The fields that only some families have, as a `config.json` would say them.
fn told_fields(
    source: &Source<'_>,
    hidden_size: usize,
    heads: &Heads,
    n_layers: usize,
) -> Result<Map<String, Value>, ConfigError> {
    let get = |key: &str| source.get(key);
    let mut fields = own_fields(&get);
    fields.insert("hidden_size".to_owned(), Value::from(hidden_size));
    if source.is_latent() {
        tell_latent_widths(&get, heads.head_dim, &mut fields)?;
        tell_scores(&get, &mut fields)?;
    }
    if source.has_experts() {
        tell_experts(source.tensors, source.name, n_layers, &mut fields);
    }
    if source.name.starts_with("minicpm") {
        tell_scales(&mut fields);
    }
    if source.naming.stored.encoder.is_some() {
        tell_encoder_decoder(&get, source.tensors, source.naming, &mut fields);
    }
    tell_by_tensors(source.tensors, source.naming, heads, &mut fields);
    Ok(fields)
}

/// The rotation of layers with a window, where it has a base of its own.
fn read_local_rope(
    theta: &Field<'_>,
    rotary_dim: usize,
    n_trained: usize,
) -> Result<Option<RopeSpec>, ConfigError> {
    let Some(theta) = theta.non_null() else { return Ok(None) };
    let theta = read_theta(theta)?;
    Ok(Some(RopeSpec { rotary_dim, theta, n_trained, scaling: RopeScaling::Default }))
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
            GgufValue::Array(GgufArray::F32(list)) => {
                list.iter().map(|x| float(decimal(*x))).collect()
            }
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

/// The number that a config would hold for one stored in f32: the shortest that rounds to it.
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

/// The layers with a window, where the file lists them; a single number is left to the family.
fn read_sliding_layers(
    pattern: &Field<'_>,
    n_layers: usize,
) -> Result<Option<Vec<bool>>, ConfigError> {
    match pattern.value() {
        Some(Value::Array(_)) => read_flags(pattern, n_layers),
        _ => Ok(None),
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
    ("moe_shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
    ("moe_latent_size", "moe_latent_size"),
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
