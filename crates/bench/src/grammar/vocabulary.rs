//! A vocabulary of any size, where no large tokenizer is at hand.

use std::collections::HashSet;

use pelton_text::Tokenizer;
use serde_json::{Map, Value, json};

use super::Random;
use crate::{BenchError, Result};

/// Pieces that frequent tokens consist of, in the spelling of byte-level vocabularies.
const PIECES: &[&str] = &[
    "th", "he", "in", "er", "an", "re", "on", "at", "en", "nd", "ti", "es", "or", "te", "of", "ed",
    "is", "it", "al", "ar", "st", "to", "nt", "ng", "se", "ha", "as", "ou", "io", "le", "ve", "co",
    "me", "de", "hi", "ri", "ro", "ic", "ne", "ea", "ra", "ce", "li", "ch", "ll", "be", "ma", "si",
    "om", "ur", "Ġt", "Ġa", "Ġs", "Ġw", "Ġc", "Ġp", "Ġm", "Ġb", "Ġf", "Ġ(", "Ġ{", "Ġ[", "Ġ\"",
    "Ġ1", "Ġ2", "ĠT", "ĠS", "ĠĠ", "\":", "\",", "\"}", "\"]", "{\"", "[\"", "()", ");", "},", "],",
    "//", "==", "->", "::", "00", "10", "20", "12", "19", "Ċ}", "ĊĠ", "ĊĊ",
];

/// A byte-level tokenizer of `n_tokens` tokens: all bytes, frequent pairs, and pairs of tokens that
/// are there already, as training would join them. Three control tokens come first.
///
/// # Errors
///
/// When `n_tokens` is less than a thousand or more than a million.
pub fn synthetic(n_tokens: usize) -> Result<Tokenizer> {
    if !(1_000..=1_000_000).contains(&n_tokens) {
        let message = format!("--vocab must be from 1000 to 1000000 tokens, got {n_tokens}");
        return Err(BenchError::invalid(message));
    }
    let control = ["<|end|>", "<|im_start|>", "<|im_end|>"];
    let mut tokens: Vec<String> = control.iter().map(|name| (*name).to_owned()).collect();
    tokens.extend((0..=255).map(|byte| byte_char(byte).to_string()));
    let n_single = tokens.len();
    let mut known: HashSet<String> = tokens.iter().cloned().collect();
    let mut merges: Vec<(String, String)> = Vec::new();
    let mut add = |left: String, right: String, tokens: &mut Vec<String>| {
        let joined = format!("{left}{right}");
        if joined.chars().count() <= 14 && known.insert(joined.clone()) {
            merges.push((left, right));
            tokens.push(joined);
        }
    };
    for piece in PIECES {
        let mut chars = piece.chars();
        if let (Some(left), Some(right)) = (chars.next(), chars.next()) {
            add(left.to_string(), right.to_string(), &mut tokens);
        }
    }
    let mut random = Random(0x5EED_1234_5678_9ABD);
    let n_frequent = tokens.len();
    while tokens.len() < n_tokens {
        // Earlier tokens are more frequent, so they are parts more often.
        let spread = (tokens.len() - n_single) as u64;
        let pick = |random: &mut Random| {
            let (a, b) = (random.next() % spread, random.next() % spread);
            n_single + a.min(b).min(random.next() % spread) as usize
        };
        let (left, right) = (pick(&mut random), pick(&mut random));
        let byte = random.next().is_multiple_of(8);
        let right = if byte { 3 + 97 + (random.next() % 26) as usize } else { right };
        let (left, right) = (tokens[left].clone(), tokens[right].clone());
        let begins_word = right.starts_with(['Ġ', 'Ċ']);
        if !begins_word || tokens.len() < n_frequent + 64 {
            add(left, right, &mut tokens);
        }
    }
    let json = tokenizer_json(&tokens, &control, &merges).to_string();
    Ok(Tokenizer::from_bytes(json.as_bytes())?)
}

/// The character that stands for a byte in byte-level vocabularies.
fn byte_char(byte: u8) -> char {
    let is_printable = |b: u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    if is_printable(byte) {
        return char::from(byte);
    }
    let n_before = (0..byte).filter(|b| !is_printable(*b)).count() as u32;
    char::from_u32(256 + n_before).unwrap_or('?')
}

fn tokenizer_json(tokens: &[String], control: &[&str], merges: &[(String, String)]) -> Value {
    let vocab: Map<String, Value> =
        tokens.iter().zip(0_u32..).map(|(token, id)| (token.clone(), json!(id))).collect();
    let added: Vec<Value> = control
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
    fn a_made_vocabulary_has_the_size_that_was_asked_for_and_every_byte() {
        let tokenizer = synthetic(5_000).expect("a tokenizer");
        assert_eq!(tokenizer.vocab_size(), 5_000);
        for byte in 0..=255_u8 {
            let is_there = (0..300).any(|id| {
                tokenizer.token_bytes(pelton_base::TokenId(id)) == Some([byte].as_slice())
            });
            assert!(is_there, "{byte}");
        }
        assert!(synthetic(10).is_err());
    }
}
