//! Any bytes are a tokenizer whose ids stay inside its vocabulary, or an error; never a panic.

use std::sync::Arc;

use pelton_text::{EncodeOptions, Tokenizer};

/// Letters, digits, white space, a special token, two scripts, an emoji and a lone combining mark.
const TEXT: &str =
    "Once upon a time, 1234!\n\n\t<|im_start|>caf\u{e9} \u{65e5}\u{672c} \u{1f600}\u{301}";

pub(crate) fn run(bytes: &[u8]) {
    if let Ok(tokenizer) = Tokenizer::from_bytes(bytes) {
        encode(Arc::new(tokenizer));
    }
}

/// Encodes a text with and without special tokens, and decodes it.
pub(crate) fn encode(tokenizer: Arc<Tokenizer>) {
    for add_special in [false, true] {
        let options = EncodeOptions { add_special, parse_special: !add_special };
        let Ok(tokens) = tokenizer.encode_with(TEXT, options) else { continue };
        let mut detokenizer = tokenizer.detokenizer(false);
        for token in tokens {
            assert!((token.0 as usize) < tokenizer.vocab_size(), "{token:?}");
            detokenizer.push(token);
        }
        detokenizer.push(pelton_base::TokenId(u32::MAX));
        detokenizer.flush();
    }
}
