//! The decoder of a `tokenizer.json`, applied to one token.
//!
//! ```text
//!   bytes(token)        the token anywhere but at the start of a text
//!   at_start(token)     the same at the start, where it is more than one space less:
//!                       Metaspace drops every space of the first token, WordPiece keeps `##`
//! ```
//! One token at a time is enough for all of these, which is why text can be streamed; a decoder
//! that looks at the tokens around (`BPEDecoder` at the last one, `CTC` at repeats) is refused.

use std::borrow::Cow;

use serde_json::Value;

use crate::byte_table::{byte_level_bytes, fallback_byte};
use crate::error::TextError;

/// Longest token that replacements are still made in, in bytes.
const MAX_TOKEN_BYTES: usize = 1 << 12;

/// How a decoder turns one token into bytes.
#[derive(Debug, Default)]
pub(crate) struct TokenDecoder {
    byte_level: bool,
    byte_fallback: bool,
    /// Replacements of one text by another, in order.
    replacements: Vec<(String, String)>,
    /// Whether the first space of a text is taken away.
    pub(crate) strips_leading_space: bool,
    /// Whether all spaces of the first token are.
    drops_first_spaces: bool,
    word_piece: Option<WordPiece>,
}

/// Tokens that are words, except those that begin with `prefix` and continue one.
#[derive(Debug)]
struct WordPiece {
    prefix: String,
    cleanup: bool,
}

impl TokenDecoder {
    /// From the `decoder` of a file; `origin` names it in errors.
    pub(crate) fn new(decoder: Option<&Value>, origin: &str) -> Result<Self, TextError> {
        let mut this = Self::default();
        if let Some(decoder) = decoder.filter(|decoder| !decoder.is_null()) {
            this.add(decoder, origin, 0)?;
        }
        Ok(this)
    }

    /// BERT's: words, and parts of words that begin with `##`.
    pub(crate) fn word_piece() -> Self {
        let word_piece = WordPiece { prefix: "##".to_owned(), cleanup: true };
        Self { strips_leading_space: true, word_piece: Some(word_piece), ..Self::default() }
    }

    /// SentencePiece's unigram models: `▁` for a space, and none at the start of a text.
    pub(crate) fn metaspace(drops_first_spaces: bool) -> Self {
        Self {
            replacements: vec![("▁".to_owned(), " ".to_owned())],
            byte_fallback: true,
            strips_leading_space: drops_first_spaces,
            drops_first_spaces,
            ..Self::default()
        }
    }

    fn add(&mut self, decoder: &Value, origin: &str, depth: usize) -> Result<(), TextError> {
        let text = |field: &str| decoder.get(field).and_then(Value::as_str);
        let flag = |field: &str| decoder.get(field).and_then(Value::as_bool);
        let kind = text("type").unwrap_or_default();
        let unsupported = || TextError::Unsupported {
            origin: origin.to_owned(),
            field: "decoder",
            found: if kind.is_empty() {
                decoder.to_string().chars().take(200).collect()
            } else {
                kind.chars().take(80).collect()
            },
            known: "ByteLevel, ByteFallback, Fuse, Metaspace, Replace, Sequence, Strip, WordPiece"
                .to_owned(),
        };
        match kind {
            "ByteLevel" => self.byte_level = true,
            "ByteFallback" => self.byte_fallback = true,
            "Fuse" => {}
            "Metaspace" => {
                let replacement = text("replacement").unwrap_or("▁").to_owned();
                self.replacements.push((replacement, " ".to_owned()));
                let never = text("prepend_scheme") == Some("never")
                    || flag("add_prefix_space") == Some(false);
                self.strips_leading_space |= !never;
                self.drops_first_spaces |= !never;
            }
            "Replace" => {
                let from = decoder.pointer("/pattern/String").and_then(Value::as_str);
                let (Some(from), Some(to)) = (from, text("content")) else {
                    return Err(unsupported());
                };
                if to.len() > 64 || self.replacements.len() >= 16 {
                    return Err(unsupported());
                }
                self.replacements.push((from.to_owned(), to.to_owned()));
            }
            "Strip" => {
                let number = |field: &str| decoder.get(field).and_then(Value::as_u64);
                match (text("content"), number("start"), number("stop")) {
                    (Some(" "), Some(1), Some(0)) => self.strips_leading_space = true,
                    (_, Some(0), Some(0)) => {}
                    _ => return Err(unsupported()),
                }
            }
            "WordPiece" => {
                let prefix = text("prefix").unwrap_or("##").to_owned();
                let cleanup = flag("cleanup").unwrap_or(true);
                self.word_piece = Some(WordPiece { prefix, cleanup });
                self.strips_leading_space = true;
            }
            "Sequence" if depth < 8 => {
                let steps = decoder.get("decoders").and_then(Value::as_array);
                for step in steps.ok_or_else(unsupported)? {
                    self.add(step, origin, depth + 1)?;
                }
            }
            _ => return Err(unsupported()),
        }
        Ok(())
    }

    /// The bytes of the token.
    pub(crate) fn bytes_of(&self, token: &str) -> Vec<u8> {
        if let Some(word_piece) = &self.word_piece {
            return word_piece.text_of(token).into_bytes();
        }
        if let Some(byte) = fallback_byte(token).filter(|_| self.byte_fallback) {
            return vec![byte];
        }
        let mut text = Cow::Borrowed(token);
        for (from, to) in &self.replacements {
            // No token in use is nearly so long; a malicious file may contain one.
            if !from.is_empty() && text.len() <= MAX_TOKEN_BYTES && text.contains(from.as_str()) {
                text = Cow::Owned(text.replace(from.as_str(), to));
            }
        }
        if self.byte_level { byte_level_bytes(&text) } else { text.into_owned().into_bytes() }
    }

    /// The bytes of an added token: it occurs in a text as it is written, outside the byte-level
    /// alphabet.
    pub(crate) fn bytes_of_added(&self, token: &str) -> Vec<u8> {
        if self.byte_level { token.as_bytes().to_vec() } else { self.bytes_of(token) }
    }

    /// The bytes of the token at the start of a text, where they differ from `bytes` without one
    /// space.
    pub(crate) fn at_start(&self, token: &str, bytes: &[u8]) -> Option<Vec<u8>> {
        let first = match &self.word_piece {
            Some(word_piece) => word_piece.clean(token).into_bytes(),
            None if self.drops_first_spaces => {
                let (spaces, _) = self.replacements.first()?;
                if self.byte_fallback && fallback_byte(token).is_some() {
                    return None;
                }
                token.replace(spaces.as_str(), "").into_bytes()
            }
            None => return None,
        };
        (first != bytes.strip_prefix(b" ").unwrap_or(bytes)).then_some(first)
    }
}

impl WordPiece {
    fn text_of(&self, token: &str) -> String {
        match token.strip_prefix(self.prefix.as_str()) {
            Some(rest) => self.clean(rest),
            None => self.clean(&format!(" {token}")),
        }
    }

    /// Removes the spaces before punctuation that splitting adds, mostly in English.
    fn clean(&self, token: &str) -> String {
        const CLEANED: [(&str, &str); 11] = [
            (" .", "."),
            (" ?", "?"),
            (" !", "!"),
            (" ,", ","),
            (" ' ", "'"),
            (" n't", "n't"),
            (" 'm", "'m"),
            (" do not", " don't"),
            (" 's", "'s"),
            (" 've", "'ve"),
            (" 're", "'re"),
        ];
        let mut text = token.to_owned();
        for (from, to) in CLEANED.iter().filter(|_| self.cleanup) {
            if text.contains(from) {
                text = text.replace(from, to);
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_token_loses_what_its_decoder_takes_from_it() {
        let decoder = |json: &str| {
            let json: Value = serde_json::from_str(json).expect("JSON");
            TokenDecoder::new(Some(&json), "tokenizer.json").expect("a decoder")
        };
        let first = |decoder: &TokenDecoder, token: &str| {
            let bytes = decoder.bytes_of(token);
            let rest = bytes.strip_prefix(b" ").unwrap_or(&bytes).to_vec();
            String::from_utf8(decoder.at_start(token, &bytes).unwrap_or(rest)).expect("UTF-8")
        };
        let always = decoder(r#"{"type": "Metaspace", "replacement": "▁"}"#);
        assert_eq!(first(&always, "▁▁a▁b"), "ab");
        assert_eq!(always.bytes_of("▁▁a▁b"), b"  a b");
        assert!(always.strips_leading_space);
        let never = decoder(r#"{"type": "Metaspace", "prepend_scheme": "never"}"#);
        assert!(never.at_start("▁▁a", b"  a").is_none() && !never.strips_leading_space);
        let words = decoder(r#"{"type": "WordPiece", "prefix": "@@", "cleanup": false}"#);
        assert_eq!((first(&words, "@@a").as_str(), words.bytes_of("@@a")), ("@@a", b"a".to_vec()));
        assert_eq!((first(&words, ".").as_str(), words.bytes_of(".")), (".", b" .".to_vec()));
        assert_eq!(TokenDecoder::word_piece().bytes_of("."), b".");
        let never = decoder(r#"{"type": "Metaspace", "add_prefix_space": false}"#);
        assert!(never.at_start("▁▁a", b"  a").is_none() && !never.strips_leading_space);
        let stripping = decoder(
            r#"{"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
                {"type": "Strip", "content": "x", "start": 0, "stop": 0}]}"#,
        );
        assert!(stripping.at_start("▁▁a", b"  a").is_none() && stripping.strips_leading_space);
        let pieces = TokenDecoder::metaspace(true);
        assert!(
            pieces.strips_leading_space && !TokenDecoder::metaspace(false).strips_leading_space
        );
        assert_eq!(
            (pieces.bytes_of("<0x20>"), pieces.bytes_of("▁a")),
            (vec![b' '], b" a".to_vec())
        );
        assert_eq!(pieces.at_start("▁▁a", b"  a").as_deref(), Some(&b"a"[..]));
        assert_eq!(pieces.at_start("<0x20>", b" "), None);
    }

    #[test]
    fn replacements_and_levels_beyond_the_limits_are_refused_and_long_tokens_left_alone() {
        let replace = |from: &str, to: &str| {
            let pattern = serde_json::json!({"String": from});
            serde_json::json!({"type": "Replace", "pattern": pattern, "content": to})
        };
        let steps = |steps: Vec<Value>| serde_json::json!({"type": "Sequence", "decoders": steps});
        let decoder = |json: &Value| TokenDecoder::new(Some(json), "tokenizer.json");
        let nested = |n: usize| {
            (0..n).fold(serde_json::json!({"type": "Fuse"}), |inner, _| steps(vec![inner]))
        };
        for (json, fits) in [
            (replace("a", &"b".repeat(64)), true),
            (replace("a", &"b".repeat(65)), false),
            (steps(vec![replace("a", "b"); 16]), true),
            (steps(vec![replace("a", "b"); 17]), false),
            (nested(8), true),
            (nested(9), false),
            (serde_json::json!({"type": "Strip", "content": " ", "start": 2, "stop": 0}), false),
            (serde_json::json!({"type": "Strip", "content": "x", "start": 1, "stop": 0}), false),
            (serde_json::json!({"type": "Strip", "content": " ", "start": 1, "stop": 1}), false),
        ] {
            assert_eq!(decoder(&json).is_ok(), fits, "{json}");
        }
        let longer = decoder(&replace("a", "bb")).expect("a decoder");
        assert_eq!(longer.bytes_of(&"a".repeat(MAX_TOKEN_BYTES)).len(), 2 * MAX_TOKEN_BYTES);
        assert_eq!(longer.bytes_of(&"a".repeat(MAX_TOKEN_BYTES + 1)).len(), MAX_TOKEN_BYTES + 1);
        assert_eq!(decoder(&replace("", "b")).expect("a decoder").bytes_of("xy"), b"xy");
    }
}
