//! A vocabulary of 256 tokens, one per byte: as many as every golden checkpoint has.

use pelton_tensor::{GgufArray, GgufValue, GgufWriter};
use serde_json::Value;

use crate::tokenizer::{byte_char, byte_level_json};

fn texts() -> impl Iterator<Item = String> {
    (0..=255).map(|byte| byte_char(byte).to_string())
}

/// The vocabulary as `tokenizer.json`.
pub(super) fn tokenizer_json() -> Value {
    byte_level_json(texts(), &[], &[])
}

/// Adds the vocabulary to the metadata of a GGUF file.
pub(super) fn add_to_gguf(writer: &mut GgufWriter) {
    let text = |x: &str| GgufValue::String(x.to_owned());
    let strings = |list: Vec<Vec<u8>>| GgufValue::Array(GgufArray::Strings(list));
    writer
        .metadata("tokenizer.ggml.model", text("gpt2"))
        .metadata("tokenizer.ggml.pre", text("gpt-2"))
        .metadata("tokenizer.ggml.tokens", strings(texts().map(String::into_bytes).collect()))
        .metadata("tokenizer.ggml.merges", strings(Vec::new()))
        .metadata("tokenizer.ggml.add_bos_token", GgufValue::Bool(false));
}
