//! `config.json`, read with suspicion.
//!
//! [`parse_config`] turns the bytes of a file into an [`HfConfig`] in which every number is in
//! range and every pair of numbers agrees: later code divides, allocates and indexes without
//! looking twice. What a family reads differently is left to its file in [`arch`](crate::arch).

use pelton_base::{TokenId, limits};
use pelton_quant::checkpoint::Scheme;
use serde_json::Value;

use crate::arch::{self, Act};
use crate::fields::{ConfigError, Field, parse_json};
use crate::rope::{RopeScaling, RopeSpec, Yarn};

/// The part of a checkpoint's configuration that architectures read, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct HfConfig {
    /// `architectures[0]`, or `model_type` where that is missing.
    pub architecture: String,
    /// `hidden_size`, in elements.
    pub hidden_size: usize,
    /// `intermediate_size`, in elements.
    pub intermediate_size: usize,
    /// `num_hidden_layers`.
    pub num_hidden_layers: usize,
    /// `num_attention_heads`; a multiple of `num_key_value_heads`.
    pub num_attention_heads: usize,
    /// `num_key_value_heads`; as many as query heads where the field is missing.
    pub num_key_value_heads: usize,
    /// `head_dim`, in elements, even; `hidden_size / num_attention_heads` where missing.
    pub head_dim: usize,
    /// `vocab_size`, in tokens.
    pub vocab_size: usize,
    /// `max_position_embeddings`, in tokens.
    pub max_position_embeddings: usize,
    /// `rms_norm_eps`.
    pub rms_norm_eps: f32,
    /// `hidden_act`.
    pub hidden_act: Act,
    /// `sliding_window`, in tokens.
    pub sliding_window: Window,
    /// `use_sliding_window`.
    pub use_sliding_window: bool,
    /// `max_window_layers`.
    pub max_window_layers: usize,
    /// Which layers are `sliding_attention` in `layer_types`; one entry per layer.
    pub sliding_layers: Option<Vec<bool>>,
    /// `attention_bias`.
    pub attention_bias: Option<bool>,
    /// `mlp_bias`.
    pub mlp_bias: bool,
    /// `tie_word_embeddings`.
    pub tie_word_embeddings: bool,
    /// `final_logit_softcapping`.
    pub final_logit_softcapping: Option<f32>,
    /// `rope_theta` with `rope_scaling` or `rope_parameters`.
    pub rope: RopeSpec,
    /// `bos_token_id`.
    pub bos_token: Option<TokenId>,
    /// `eos_token_id`, one or several.
    pub eos_tokens: Vec<TokenId>,
}

/// What a config says about its attention window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Window {
    /// Nothing: the family's default holds.
    Absent,
    /// `null`: full attention.
    Off,
    /// A window of this many tokens.
    Tokens(usize),
}

const DEFAULT_NORM_EPS: f64 = 1e-6;
const DEFAULT_THETA: f64 = 10_000.0;
/// `head_dim` of Qwen3 configs that leave it out.
const QWEN3_HEAD_DIM: usize = 128;
const MOST_HEAD_DIM: usize = 1024;

/// Reads a `config.json`.
///
/// # Errors
///
/// Names the field, what it should be and what was found; an unknown architecture is answered with
/// the list of known ones.
pub fn parse_config(bytes: &[u8]) -> Result<HfConfig, ConfigError> {
    if bytes.len() as u64 > limits::CONFIG_BYTES {
        return Err(ConfigError::TooLarge {
            n_bytes: bytes.len() as u64,
            limit: limits::CONFIG_BYTES,
        });
    }
    let value = parse_json(bytes)?;
    if !value.is_object() {
        return Err(ConfigError::NotJson("expected an object at the top".to_owned()));
    }
    read_config(&Field::new("", Some(&value)))
}

/// How the matrices of a checkpoint with this `config.json` are quantized; `None` where they are not.
pub(crate) fn parse_scheme(bytes: &[u8]) -> Result<Option<Scheme>, ConfigError> {
    let value = parse_json(bytes)?;
    read_scheme(&Field::new("", Some(&value)))
}

fn read_scheme(root: &Field<'_>) -> Result<Option<Scheme>, ConfigError> {
    let Some(config) = root.get("quantization_config").value() else { return Ok(None) };
    Scheme::parse(config).map(Some).map_err(ConfigError::from)
}

fn read_config(root: &Field<'_>) -> Result<HfConfig, ConfigError> {
    let architecture = read_architecture(root)?;
    if arch::find(&architecture).is_none() {
        return Err(arch::unknown(&architecture));
    }
    read_scheme(root)?;

    let hidden_size = root.get("hidden_size").count(limits::MODEL_WIDTH)?;
    let num_hidden_layers = root.get("num_hidden_layers").count(limits::MODEL_LAYERS)?;
    let heads = HeadFields {
        hidden_size,
        n_heads: root.get("num_attention_heads"),
        n_kv_heads: root.get("num_key_value_heads"),
        head_dim: root.get("head_dim"),
        default_head_dim: architecture.starts_with("Qwen3").then_some(QWEN3_HEAD_DIM),
    }
    .read()?;
    let max_position_embeddings =
        root.get("max_position_embeddings").count(limits::MODEL_CONTEXT)?;
    let vocab_size = root.get("vocab_size").count(limits::MODEL_VOCAB)?;
    let eps = root.get("rms_norm_eps");

    Ok(HfConfig {
        hidden_size,
        intermediate_size: root.get("intermediate_size").count(limits::MODEL_WIDTH)?,
        num_hidden_layers,
        num_attention_heads: heads.n_heads,
        num_key_value_heads: heads.n_kv_heads,
        head_dim: heads.head_dim,
        vocab_size,
        max_position_embeddings,
        rms_norm_eps: match eps.non_null() {
            Some(eps) => read_eps(eps)?,
            None => DEFAULT_NORM_EPS as f32,
        },
        hidden_act: read_act(&root.get("hidden_act"))?,
        sliding_window: read_window(&root.get("sliding_window"))?,
        use_sliding_window: root.get("use_sliding_window").flag(false)?,
        max_window_layers: match root.get("max_window_layers").non_null() {
            Some(field) => field.integer(0, limits::MODEL_LAYERS)?,
            None => 0,
        },
        sliding_layers: read_layer_types(&root.get("layer_types"), num_hidden_layers)?,
        attention_bias: match root.get("attention_bias").non_null() {
            Some(field) => Some(field.flag(false)?),
            None => None,
        },
        mlp_bias: root.get("mlp_bias").flag(false)?,
        tie_word_embeddings: root.get("tie_word_embeddings").flag(false)?,
        final_logit_softcapping: match root.get("final_logit_softcapping").non_null() {
            Some(field) => Some(field.number(1e-3, 1e6)? as f32),
            None => None,
        },
        rope: read_rope(root, heads.head_dim, max_position_embeddings)?,
        bos_token: read_tokens(&root.get("bos_token_id"), vocab_size)?.first().copied(),
        eos_tokens: read_tokens(&root.get("eos_token_id"), vocab_size)?,
        architecture,
    })
}

fn read_architecture(root: &Field<'_>) -> Result<String, ConfigError> {
    let field = root.get("architectures");
    match field.value() {
        Some(Value::Array(names)) => match names.first() {
            Some(Value::String(name)) => return Ok(name.clone()),
            _ => return Err(field.error("a list with the name of the architecture")),
        },
        Some(_) => return Err(field.error("a list with the name of the architecture")),
        None => {}
    }
    match root.get("model_type").text()? {
        Some(name) => Ok(name.to_owned()),
        None => Err(field.error("a list with the name of the architecture")),
    }
}

/// The fields that together say how attention is divided into heads.
pub(crate) struct HeadFields<'a> {
    pub(crate) hidden_size: usize,
    pub(crate) n_heads: Field<'a>,
    pub(crate) n_kv_heads: Field<'a>,
    pub(crate) head_dim: Field<'a>,
    pub(crate) default_head_dim: Option<usize>,
}

/// Heads that divide as they should.
pub(crate) struct Heads {
    pub(crate) n_heads: usize,
    pub(crate) n_kv_heads: usize,
    pub(crate) head_dim: usize,
}

impl HeadFields<'_> {
    pub(crate) fn read(&self) -> Result<Heads, ConfigError> {
        let hidden_size = self.hidden_size;
        let n_heads = self.n_heads.count(limits::MODEL_WIDTH)?;
        let n_kv_heads = match self.n_kv_heads.non_null() {
            Some(field) => field.count(limits::MODEL_WIDTH)?,
            None => n_heads,
        };
        if !n_heads.is_multiple_of(n_kv_heads) {
            return Err(self.n_kv_heads.error(format!("a divisor of the {n_heads} query heads")));
        }
        let head_dim = match (self.head_dim.non_null(), self.default_head_dim) {
            (Some(field), _) => field.count(MOST_HEAD_DIM)?,
            (None, Some(default)) => default,
            (None, None) if hidden_size.is_multiple_of(n_heads) => hidden_size / n_heads,
            (None, None) => {
                return Err(self
                    .n_heads
                    .error(format!("a divisor of the hidden size, {hidden_size}")));
            }
        };
        if !head_dim.is_multiple_of(2) || head_dim > MOST_HEAD_DIM {
            let found =
                if self.head_dim.non_null().is_some() { &self.head_dim } else { &self.n_heads };
            return Err(found.error(format!(
                "heads of an even width up to {MOST_HEAD_DIM}, this makes {head_dim}"
            )));
        }
        if n_heads.checked_mul(head_dim).is_none_or(|width| width > limits::MODEL_WIDTH) {
            return Err(self.n_heads.error(format!(
                "at most {} elements in all heads, each has {head_dim}",
                limits::MODEL_WIDTH
            )));
        }
        Ok(Heads { n_heads, n_kv_heads, head_dim })
    }
}

pub(crate) fn read_eps(field: &Field<'_>) -> Result<f32, ConfigError> {
    Ok(field.number(1e-12, 1.0)? as f32)
}

fn read_act(field: &Field<'_>) -> Result<Act, ConfigError> {
    match field.text()? {
        None | Some("silu" | "swish") => Ok(Act::Silu),
        Some("gelu_pytorch_tanh" | "gelu_new") => Ok(Act::GeluTanh),
        Some(_) => Err(field.error("\"silu\" or \"gelu_pytorch_tanh\"")),
    }
}

fn read_window(field: &Field<'_>) -> Result<Window, ConfigError> {
    match field.non_null() {
        Some(field) => Ok(Window::Tokens(field.count(limits::MODEL_CONTEXT)?)),
        None if field.is_present() => Ok(Window::Off),
        None => Ok(Window::Absent),
    }
}

fn read_layer_types(field: &Field<'_>, n_layers: usize) -> Result<Option<Vec<bool>>, ConfigError> {
    let expected = || {
        field.error(format!(
            "one of \"full_attention\" and \"sliding_attention\" for each of the {n_layers} layers"
        ))
    };
    let items = match field.value() {
        None => return Ok(None),
        Some(Value::Array(items)) if items.len() == n_layers => items,
        Some(_) => return Err(expected()),
    };
    items
        .iter()
        .map(|item| match item.as_str() {
            Some("full_attention") => Ok(false),
            Some("sliding_attention") => Ok(true),
            _ => Err(expected()),
        })
        .collect::<Result<_, _>>()
        .map(Some)
}

/// A token id, a list of them, or nothing. Ids outside of the vocabulary are dropped: published
/// configs of models with a cut vocabulary carry them, and they can never be generated.
pub(crate) fn read_tokens(
    field: &Field<'_>,
    vocab_size: usize,
) -> Result<Vec<TokenId>, ConfigError> {
    const MOST_TOKENS: usize = 256;
    let expected = "a token id or a list of up to 256 token ids";
    let items = match field.value() {
        None => return Ok(Vec::new()),
        Some(Value::Array(items)) if items.len() <= MOST_TOKENS => items.as_slice(),
        Some(value @ Value::Number(_)) => std::slice::from_ref(value),
        Some(_) => return Err(field.error(expected)),
    };
    let mut tokens = Vec::with_capacity(items.len());
    for item in items {
        // Some configs write -1 for "none".
        let id = item.as_i64().ok_or_else(|| field.error(expected))?;
        if (0..vocab_size as i64).contains(&id) {
            tokens.push(TokenId(id as u32));
        }
    }
    Ok(tokens)
}

/// The end-of-text tokens of a `generation_config.json`; an unreadable one has none.
pub(crate) fn generation_eos_tokens(bytes: &[u8], vocab_size: usize) -> Vec<TokenId> {
    let Ok(value) = parse_json(bytes) else { return Vec::new() };
    let root = Field::new("", Some(&value));
    read_tokens(&root.get("eos_token_id"), vocab_size).unwrap_or_default()
}

fn read_rope(
    root: &Field<'_>,
    head_dim: usize,
    max_position_embeddings: usize,
) -> Result<RopeSpec, ConfigError> {
    // `rope_parameters` is how transformers 5 spells `rope_scaling` and `rope_theta` together.
    let table = ["rope_scaling", "rope_parameters"]
        .map(|name| root.get(name))
        .into_iter()
        .find(|field| field.value().is_some_and(|v| v.as_object().is_none_or(|o| !o.is_empty())));
    let theta = table
        .as_ref()
        .map(|table| table.get("rope_theta"))
        .filter(|field| field.non_null().is_some())
        .unwrap_or_else(|| root.get("rope_theta"));
    let theta = match theta.non_null() {
        Some(field) => read_theta(field)?,
        None => DEFAULT_THETA,
    };
    for parent in table.iter().chain([root]) {
        let partial = parent.get("partial_rotary_factor");
        if partial.non_null().is_some() && partial.number(0.0, 1.0)? != 1.0 {
            return Err(partial.error("1: rotating a part of a head is not supported"));
        }
    }
    let scaling = match &table {
        Some(table) => read_scaling(table, root, head_dim, max_position_embeddings)?,
        None => RopeScaling::Default,
    };
    Ok(RopeSpec { head_dim, theta, n_trained: max_position_embeddings, scaling })
}

pub(crate) fn read_theta(field: &Field<'_>) -> Result<f64, ConfigError> {
    field.number(1.0 + 1e-6, 1e15)
}

/// A factor by which a context is stretched.
pub(crate) fn read_factor(field: &Field<'_>) -> Result<f64, ConfigError> {
    field.number(1.0, 1e6)
}

fn read_scaling(
    table: &Field<'_>,
    root: &Field<'_>,
    head_dim: usize,
    max_position_embeddings: usize,
) -> Result<RopeScaling, ConfigError> {
    if table.value().is_some_and(|value| !value.is_object()) {
        return Err(table.error("an object or null"));
    }
    let kind = ["rope_type", "type"]
        .map(|name| table.get(name))
        .into_iter()
        .find(|field| field.non_null().is_some());
    let Some(kind) = kind else {
        // `rope_parameters` may hold `rope_theta` alone; an old `rope_scaling` must name its kind.
        let kind = table.get("rope_type");
        return if table.get("factor").is_present() {
            Err(kind.error("the kind of scaling"))
        } else {
            Ok(RopeScaling::Default)
        };
    };
    let optional = |name: &str, min: f64, max: f64| match table.get(name).non_null() {
        Some(field) => field.number(min, max).map(Some),
        None => Ok(None),
    };
    let n_original = || -> Result<usize, ConfigError> {
        let name = "original_max_position_embeddings";
        let field =
            [root.get(name), table.get(name)].into_iter().find(|field| field.non_null().is_some());
        match field {
            Some(field) => field.count(limits::MODEL_CONTEXT),
            None => Ok(max_position_embeddings),
        }
    };
    let stretch = |n_original: usize| match table.get("factor").non_null() {
        Some(field) => read_factor(field),
        None => Ok((max_position_embeddings as f64 / n_original as f64).max(1.0)),
    };
    match kind.text()?.unwrap_or_default() {
        "default" => Ok(RopeScaling::Default),
        "linear" => Ok(RopeScaling::Linear { factor: read_factor(&table.get("factor"))? }),
        "dynamic" => Ok(RopeScaling::Dynamic { factor: read_factor(&table.get("factor"))? }),
        "yarn" => {
            let n_original = n_original()?;
            Ok(RopeScaling::Yarn(Yarn {
                factor: stretch(n_original)?,
                n_original,
                attention_factor: optional("attention_factor", 0.0, 1e3)?,
                mscale: optional("mscale", 0.0, 1e3)?,
                mscale_all_dim: optional("mscale_all_dim", 0.0, 1e3)?,
                beta_fast: optional("beta_fast", 0.0, 1e6)?.filter(|x| *x > 0.0).unwrap_or(32.0),
                beta_slow: optional("beta_slow", 0.0, 1e6)?.filter(|x| *x > 0.0).unwrap_or(1.0),
                truncate: table.get("truncate").flag(true)?,
            }))
        }
        "llama3" => {
            let low = table.get("low_freq_factor").number(1e-6, 1e6)?;
            let high_field = table.get("high_freq_factor");
            let high = high_field.number(1e-6, 1e6)?;
            if high <= low {
                return Err(high_field.error(format!("more than `low_freq_factor`, {low}")));
            }
            Ok(RopeScaling::Llama3 {
                factor: read_factor(&table.get("factor"))?,
                low_freq_factor: low,
                high_freq_factor: high,
                n_original: n_original()?,
            })
        }
        "longrope" | "su" => {
            let n_original = n_original()?;
            Ok(RopeScaling::LongRope {
                factor: stretch(n_original)?,
                n_original,
                attention_factor: optional("attention_factor", 0.0, 1e3)?,
                short_factors: table.get("short_factor").numbers(head_dim / 2, 1e-6, 1e6)?,
                long_factors: table.get("long_factor").numbers(head_dim / 2, 1e-6, 1e6)?,
            })
        }
        _ => Err(kind.error("one of default, linear, dynamic, yarn, llama3, longrope")),
    }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
