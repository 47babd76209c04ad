//! From the JSON of a request to a request that can be run.

use pelton_base::limits;
use pelton_llm::{EmbedInput, EmbedRequest};
use serde_json::Value;

use super::types::{EmbeddingsBody, VectorFormat};
use crate::error::ApiError;
use crate::wire::{token, wrong};

/// Checks everything that does not depend on the model.
pub(crate) fn check(body: EmbeddingsBody) -> Result<(EmbedRequest, VectorFormat), ApiError> {
    let format = match body.encoding_format.as_deref() {
        None | Some("float") => VectorFormat::Float,
        Some("base64") => VectorFormat::Base64,
        Some(other) => {
            let expected = "\"float\" or \"base64\"";
            return Err(wrong("encoding_format", expected, &Value::from(other)));
        }
    };
    let request = EmbedRequest {
        inputs: body.inputs,
        dimensions: body.dimensions,
        prompt_name: body.prompt_name,
        truncate: body.truncate,
    };
    Ok((request, format))
}

/// Reads a text, tokens, texts, or lists of tokens.
pub(crate) fn inputs(value: Value) -> Result<Vec<EmbedInput>, ApiError> {
    const EXPECTED: &str = "a string, an array of strings, or token ids";
    let items = match value {
        Value::String(text) => return Ok(vec![EmbedInput::Text(text)]),
        Value::Array(items) if !items.is_empty() => items,
        other => return Err(wrong("input", EXPECTED, &other)),
    };
    let tokens = |items: &[Value]| {
        items.iter().map(|item| token("input", item)).collect::<Result<Vec<_>, _>>()
    };
    if items[0].is_number() {
        return Ok(vec![EmbedInput::Tokens(tokens(&items)?)]);
    }
    if items.len() > limits::EMBED_INPUTS {
        let (n, most) = (items.len(), limits::EMBED_INPUTS);
        return Err(ApiError::param("input", format!("`input` has {n} texts, at most {most}")));
    }
    let of_strings = items[0].is_string();
    items
        .into_iter()
        .map(|item| match item {
            Value::String(text) if of_strings => Ok(EmbedInput::Text(text)),
            Value::Array(ids) if !of_strings => tokens(&ids).map(EmbedInput::Tokens),
            other => Err(wrong("input", EXPECTED, &other)),
        })
        .collect()
}
