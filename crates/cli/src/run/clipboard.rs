//! Copying to the clipboard of the terminal, also over a remote shell.
//!
//! The terminal is asked by an escape sequence (OSC 52). It does not answer, so nobody can know
//! whether it did so; most terminals do, some only when they are set up to.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Longest text that terminals take, in bytes: xterm stops at 100,000 characters of base 64.
const MOST_BYTES: usize = 74_000;

/// The sequence that puts a text into the clipboard.
///
/// # Errors
///
/// Says why the text cannot be copied.
pub(crate) fn sequence(text: &str) -> Result<String, String> {
    if text.len() > MOST_BYTES {
        return Err(format!(
            "the answer has {} bytes, and terminals copy at most {MOST_BYTES}: /save writes it to \
             a file",
            text.len()
        ));
    }
    Ok(format!("\x1b]52;c;{}\x07", STANDARD.encode(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_becomes_one_sequence_without_its_own_control_characters() {
        assert_eq!(sequence("hi\n\x07"), Ok("\x1b]52;c;aGkKBw==\x07".to_owned()));
        let why = sequence(&"x".repeat(MOST_BYTES + 1)).expect_err("too long");
        assert!(why.contains("/save"), "{why}");
    }
}
