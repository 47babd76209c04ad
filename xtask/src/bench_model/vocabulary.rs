//! A synthetic vocabulary: every byte, then pairs and triples of bytes, each made by one merge,
//! then the token that ends a text.

use pelton_tensor::{GgufArray, GgufValue, GgufWriter};
use serde_json::{Map, Value, json};

const END: &str = "<|endoftext|>";

/// Tokens in the order of their ids, the end excepted, and the merges that make them.
struct Vocabulary {
    tokens: Vec<String>,
    merges: Vec<(String, String)>,
}

impl Vocabulary {
    fn new(n_tokens: usize) -> Self {
        let bytes: Vec<String> = (0..=255).map(|byte| byte_char(byte).to_string()).collect();
        let n_merges = n_tokens - bytes.len() - 1;
        let pairs = bytes.iter().flat_map(|a| bytes.iter().map(move |b| (a.clone(), b.clone())));
        let triples = pairs
            .clone()
            .flat_map(|(a, b)| bytes.iter().map(move |c| (format!("{a}{b}"), c.clone())));
        let merges: Vec<(String, String)> = pairs.chain(triples).take(n_merges).collect();
        let merged = merges.iter().map(|(a, b)| format!("{a}{b}"));
        let tokens = bytes.iter().cloned().chain(merged).collect();
        Self { tokens, merges }
    }
}

/// The character that stands for a byte in byte-level vocabularies.
fn byte_char(byte: u8) -> char {
    let is_printable = |b: u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    if is_printable(byte) {
        return char::from(byte);
    }
    let n_before = (0..byte).filter(|b| !is_printable(*b)).count() as u32;
    char::from_u32(256 + n_before).expect("invariant: below U+0200")
}

/// As the metadata of a GGUF file.
pub(super) fn write_gguf(n_tokens: usize, writer: &mut GgufWriter) {
    let Vocabulary { tokens, merges } = Vocabulary::new(n_tokens);
    let end_id = tokens.len();
    let mut kinds = vec![1; end_id];
    kinds.push(3);
    let tokens = tokens.into_iter().chain([END.to_owned()]).map(String::into_bytes).collect();
    let merges = merges.iter().map(|(a, b)| format!("{a} {b}").into_bytes()).collect();
    let text = |x: &str| GgufValue::String(x.to_owned());
    writer
        .metadata("tokenizer.ggml.model", text("gpt2"))
        .metadata("tokenizer.ggml.pre", text("gpt-2"))
        .metadata("tokenizer.ggml.tokens", GgufValue::Array(GgufArray::Strings(tokens)))
        .metadata("tokenizer.ggml.token_type", GgufValue::Array(GgufArray::I32(kinds)))
        .metadata("tokenizer.ggml.merges", GgufValue::Array(GgufArray::Strings(merges)))
        .metadata("tokenizer.ggml.eos_token_id", GgufValue::U32(end_id as u32))
        .metadata("tokenizer.ggml.add_bos_token", GgufValue::Bool(false));
}

/// As a `tokenizer.json`.
pub(super) fn json(n_tokens: usize) -> Value {
    let Vocabulary { tokens, merges } = Vocabulary::new(n_tokens);
    let end = json!({
        "id": tokens.len(), "content": END, "special": true, "single_word": false,
        "lstrip": false, "rstrip": false, "normalized": false,
    });
    let vocab: Map<String, Value> =
        tokens.into_iter().enumerate().map(|(id, token)| (token, Value::from(id))).collect();
    let byte_level = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true,
    });
    json!({
        "version": "1.0", "added_tokens": [end], "normalizer": null,
        "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
    })
}
