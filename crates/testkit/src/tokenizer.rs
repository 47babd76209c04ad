//! A byte-level tokenizer of 260 tokens: three special ones, every byte, and one merge.

use serde_json::{Value, json};

/// Special tokens, ids from zero: end of text, start of turn, end of turn.
pub(crate) const SPECIAL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
/// The merges; each adds one token.
pub(crate) const MERGES: [(&str, &str); 1] = [("t", "h")];

/// The character that stands for a byte in byte-level vocabularies: a printable byte stands for
/// itself, every other one is a character from U+0100 on.
pub(crate) fn byte_char(byte: u8) -> char {
    let is_printable = |b: u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    if is_printable(byte) {
        return char::from(byte);
    }
    let n_before = (0..byte).filter(|b| !is_printable(*b)).count() as u32;
    char::from_u32(256 + n_before).expect("invariant: below U+0200")
}

/// Token of a single byte in these tokenizers.
pub fn byte_token(byte: u8) -> u32 {
    SPECIAL.len() as u32 + u32::from(byte)
}

/// Every token's text, by id.
pub(crate) fn texts() -> Vec<String> {
    let special = SPECIAL.iter().map(|text| (*text).to_owned());
    let bytes = (0..=255).map(|byte| byte_char(byte).to_string());
    let merged = MERGES.iter().map(|(a, b)| format!("{a}{b}"));
    special.chain(bytes).chain(merged).collect()
}

/// A `tokenizer.json` with one token per byte, a merge of `t` and `h`, and chat special tokens.
pub fn tokenizer_json() -> Value {
    byte_level_json(texts().into_iter(), &SPECIAL, &MERGES)
}

/// A byte-level `tokenizer.json` of these tokens, the first of which are special.
pub(crate) fn byte_level_json(
    texts: impl Iterator<Item = String>,
    special: &[&str],
    merges: &[(&str, &str)],
) -> Value {
    let vocab: serde_json::Map<String, Value> =
        texts.zip(0..).map(|(text, id): (String, u32)| (text, json!(id))).collect();
    let added: Vec<Value> = special
        .iter()
        .enumerate()
        .map(|(id, text)| {
            json!({
                "id": id, "content": text, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true,
            })
        })
        .collect();
    let merges: Vec<Value> = merges.iter().map(|(a, b)| json!([a, b])).collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": {
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true,
        },
        "post_processor": null,
        "decoder": {
            "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true,
        },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": false, "vocab": vocab, "merges": merges,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_has_its_own_text() {
        let mut texts = texts();
        assert_eq!(texts.len(), 260);
        assert_eq!(texts[byte_token(b' ') as usize], "\u{120}");
        texts.sort();
        texts.dedup();
        assert_eq!(texts.len(), 260);
    }
}
