//! Tokens to text, incrementally.

use std::sync::Arc;

use pelton_base::TokenId;

use crate::tokenizer::Tokenizer;

/// Turns a stream of tokens into a stream of valid UTF-8.
///
/// A character may be spread over several tokens. Bytes that may still become a character (at most
/// three) are held back until the next token decides; bytes that cannot become one turn into
/// `U+FFFD` at once. However the tokens are split over calls, the pieces joined and flushed are
/// exactly [`Tokenizer::decode`] of all of them.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    skip_special: bool,
    /// An incomplete character, zero to three bytes.
    held: Vec<u8>,
    /// Whether the next byte is the first of the text and may be SentencePiece's dummy space.
    at_start: bool,
}

impl Detokenizer {
    /// For tokens that begin a text; `skip_special` leaves control tokens out.
    ///
    /// Vocabularies that put a space before every text lose that one space again.
    pub fn new(tokenizer: &Arc<Tokenizer>, skip_special: bool) -> Self {
        Self {
            tokenizer: Arc::clone(tokenizer),
            skip_special,
            held: Vec::new(),
            at_start: tokenizer.strips_leading_space(),
        }
    }

    /// For tokens that continue a text, such as the answer after a prompt: a leading space is kept.
    pub fn continuing(tokenizer: &Arc<Tokenizer>, skip_special: bool) -> Self {
        Self { at_start: false, ..Self::new(tokenizer, skip_special) }
    }

    /// Adds one token and returns the text that is now certain; often nothing.
    ///
    /// A token outside the vocabulary has no text.
    pub fn push(&mut self, token: TokenId) -> String {
        if self.skip_special && self.tokenizer.is_special(token) {
            return String::new();
        }
        let bytes = self.tokenizer.bytes_after(&mut self.at_start, token);
        self.held.extend_from_slice(bytes);
        take_certain(&mut self.held)
    }

    /// Ends the text: held bytes become one `U+FFFD`; without held bytes the result is empty.
    pub fn flush(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.held).into_owned();
        self.held.clear();
        text
    }

    /// Bytes held back because they may be the start of a character.
    pub fn held_bytes(&self) -> &[u8] {
        &self.held
    }
}

/// Takes everything but an incomplete character at the end; invalid bytes are replaced.
fn take_certain(held: &mut Vec<u8>) -> String {
    let mut text = String::with_capacity(held.len());
    let mut rest = held.as_slice();
    let n_incomplete = loop {
        match std::str::from_utf8(rest) {
            Ok(valid) => {
                text.push_str(valid);
                break 0;
            }
            Err(error) => {
                let (valid, after) = rest.split_at(error.valid_up_to());
                text.push_str(&String::from_utf8_lossy(valid));
                match error.error_len() {
                    Some(n_bad) => {
                        text.push(char::REPLACEMENT_CHARACTER);
                        rest = &after[n_bad..];
                    }
                    None => break after.len(),
                }
            }
        }
    };
    held.drain(..held.len() - n_incomplete);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_character_is_replaced_as_soon_as_it_is_certain() {
        let mut held = b"a\xf0\x9f".to_vec();
        assert_eq!(take_certain(&mut held), "a");
        assert_eq!(held, b"\xf0\x9f");
        held.extend_from_slice(b"b\xffc\xe2\x82");
        assert_eq!(take_certain(&mut held), "\u{fffd}b\u{fffd}c");
        assert_eq!(held, b"\xe2\x82");
    }
}
