//! Values of a config that stand by themselves: norms, activations, windows, tokens.

use std::sync::Arc;

use pelton_base::{SuppressedTokens, TokenId, limits};
use serde_json::Value;

use super::Window;
use crate::arch::Act;
use crate::fields::{ConfigError, Field, parse_json};

pub(crate) fn read_cap(field: &Field<'_>) -> Result<Option<f32>, ConfigError> {
    field.non_null().map(|field| Ok(field.number(1e-3, 1e6)? as f32)).transpose()
}

pub(crate) fn read_eps(field: &Field<'_>) -> Result<f32, ConfigError> {
    // The f32 next to 1e-12, as GGUF files have it, is a little less.
    Ok(field.number(9e-13, 1.0)? as f32)
}

pub(crate) fn read_act(field: &Field<'_>) -> Result<Act, ConfigError> {
    match field.text()? {
        None | Some("silu" | "swish") => Ok(Act::Silu),
        Some("gelu_pytorch_tanh" | "gelu_new" | "gelu_fast") => Ok(Act::GeluTanh),
        Some("gelu" | "gelu_python") => Ok(Act::Gelu),
        Some("quick_gelu") => Ok(Act::QuickGelu),
        Some("relu") => Ok(Act::Relu),
        Some("relu2" | "sqrelu") => Ok(Act::ReluSquared),
        Some(_) => Err(field.error(
            "one of \"silu\", \"gelu\", \"gelu_pytorch_tanh\", \"quick_gelu\", \"relu\", \"relu2\"",
        )),
    }
}

/// The width of perceptrons; of a list, which some families may have, the first.
pub(super) fn read_ffn(field: &Field<'_>, may_be_list: bool) -> Result<usize, ConfigError> {
    match field.value().and_then(Value::as_array).and_then(|widths| widths.first()) {
        Some(first) if may_be_list => field.with(first).count(limits::MODEL_WIDTH),
        _ => field.count(limits::MODEL_WIDTH),
    }
}

/// A number of standard deviations for each layer, as GGUF files have them; minus infinity stands for none.
pub(crate) fn read_cuts(
    field: &Field<'_>,
    n_layers: usize,
) -> Result<Vec<Option<f32>>, ConfigError> {
    let cut = |item: &Value| match item {
        Value::String(text) if text == "-inf" => Some(None),
        item => item.as_f64().filter(|x| x.abs() <= 4.0).map(|x| Some(x as f32)),
    };
    let items = field.value().and_then(Value::as_array).filter(|items| items.len() == n_layers);
    let cuts = items.and_then(|items| items.iter().map(cut).collect::<Option<Vec<_>>>());
    cuts.ok_or_else(|| {
        field.error(format!("-inf, or a number from -4 to 4, for each of {n_layers} layers"))
    })
}

pub(super) fn read_window(root: &Field<'_>) -> Result<Window, ConfigError> {
    let (field, is_used) = (&root.get("sliding_window"), root.get("use_sliding_window"));
    match field.non_null() {
        // Configs of Qwen2-MoE write 0 where they use none.
        Some(field) if is_used.value() == Some(&Value::Bool(false)) => {
            match field.integer(0, limits::MODEL_CONTEXT)? {
                0 => Ok(Window::Off),
                n => Ok(Window::Tokens(n)),
            }
        }
        Some(field) => Ok(Window::Tokens(field.count(limits::MODEL_CONTEXT)?)),
        None if field.is_present() => Ok(Window::Off),
        None => Ok(Window::Absent),
    }
}

pub(super) fn read_layer_types(
    field: &Field<'_>,
    n_layers: usize,
    more_kinds: &[&str],
) -> Result<Option<Vec<bool>>, ConfigError> {
    let expected = || {
        let more: Vec<String> = more_kinds.iter().map(|kind| format!(", {kind:?}")).collect();
        let more = more.concat();
        field.error(format!(
            "one of \"full_attention\"{more} and \"sliding_attention\" for each of the {n_layers} \
             layers"
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
            Some("sliding_attention" | "chunked_attention") => Ok(true),
            Some(kind) if more_kinds.contains(&kind) => Ok(false),
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
    match field.value() {
        Some(value @ Value::Number(_)) => {
            read_ids(field, std::slice::from_ref(value), vocab_size, expected)
        }
        _ => read_list(field, vocab_size, MOST_TOKENS, expected),
    }
}

/// A list of at most `most` token ids, or nothing.
fn read_list(
    field: &Field<'_>,
    vocab_size: usize,
    most: usize,
    expected: &str,
) -> Result<Vec<TokenId>, ConfigError> {
    match field.value() {
        None => Ok(Vec::new()),
        Some(Value::Array(items)) if items.len() <= most => {
            read_ids(field, items, vocab_size, expected)
        }
        Some(_) => Err(field.error(expected)),
    }
}

fn read_ids(
    field: &Field<'_>,
    items: &[Value],
    vocab_size: usize,
    expected: &str,
) -> Result<Vec<TokenId>, ConfigError> {
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

/// The suppressed tokens of a `generation_config.json`; an unreadable one has none.
pub(crate) fn generation_suppressed(
    bytes: &[u8],
    vocab_size: usize,
) -> Result<SuppressedTokens, ConfigError> {
    let Ok(value) = parse_json(bytes) else { return Ok(SuppressedTokens::default()) };
    let root = Field::new("", Some(&value));
    let read = |name: &str| -> Result<Arc<[TokenId]>, ConfigError> {
        let expected = "a list of up to 65536 token ids";
        let mut tokens = read_list(&root.get(name), vocab_size, limits::ALLOWED_TOKENS, expected)?;
        tokens.sort_unstable();
        tokens.dedup();
        Ok(tokens.into())
    };
    Ok(SuppressedTokens { always: read("suppress_tokens")?, first: read("begin_suppress_tokens")? })
}

/// The end-of-text tokens of a `generation_config.json`; an unreadable one has none.
pub(crate) fn generation_eos_tokens(bytes: &[u8], vocab_size: usize) -> Vec<TokenId> {
    let Ok(value) = parse_json(bytes) else { return Vec::new() };
    let root = Field::new("", Some(&value));
    read_tokens(&root.get("eos_token_id"), vocab_size).unwrap_or_default()
}
