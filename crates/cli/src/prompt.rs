//! Sources of the prompt: the command line, token ids, standard input, or a person.

use std::io::{IsTerminal, Read};

use pelton_base::{TokenId, limits};

use crate::failure::{Failure, Result};

/// A prompt to be continued or answered.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Prompt {
    /// Text, not empty.
    Text(String),
    /// Token ids, not empty.
    Tokens(Vec<TokenId>),
    /// Nothing given, and a terminal to ask.
    Interactive,
}

impl Prompt {
    /// Decides from the flags, reading standard input where they say so.
    ///
    /// # Errors
    ///
    /// An empty prompt, one beyond [`limits::PROMPT_BYTES`], or one that is not UTF-8.
    pub(crate) fn gather(prompt: Option<&str>, tokens: Option<&[TokenId]>) -> Result<Self> {
        match (prompt, tokens) {
            (_, Some([])) => Err(Failure::new("`--tokens` is empty: expected at least one id")),
            (_, Some(tokens)) => Ok(Self::Tokens(tokens.to_vec())),
            (Some("-"), None) => read_text(std::io::stdin().lock()).map(Self::Text),
            (Some(text), None) => checked_text(text.to_owned()).map(Self::Text),
            (None, None) if std::io::stdin().is_terminal() => Ok(Self::Interactive),
            (None, None) => read_text(std::io::stdin().lock()).map(Self::Text),
        }
    }
}

/// Parses `1,2,3`; blanks around the numbers are fine.
pub(crate) fn parse_tokens(list: &str) -> std::result::Result<Vec<TokenId>, String> {
    if list.trim().is_empty() {
        return Ok(Vec::new());
    }
    list.split(',')
        .map(|item| {
            item.trim()
                .parse()
                .map(TokenId)
                .map_err(|_| format!("expected token ids such as 1,2,3, got `{}`", item.trim()))
        })
        .collect()
}

/// Reads a whole text; one newline at its end belongs to the shell, not to the prompt.
fn read_text(input: impl Read) -> Result<String> {
    let mut bytes = Vec::new();
    input
        .take(limits::PROMPT_BYTES as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::new(format!("cannot read standard input: {error}")))?;
    // The length is checked first, because a cut within a character is not invalid UTF-8.
    check_length(bytes.len())?;
    let mut text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Failure::new(format!("standard input is not valid UTF-8: bad byte at offset {at}"))
            .hint("a prompt is text; give token ids with `--tokens 1,2,3`")
    })?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    checked_text(text)
}

fn check_length(n_bytes: usize) -> Result<()> {
    if n_bytes <= limits::PROMPT_BYTES {
        return Ok(());
    }
    let most = limits::PROMPT_BYTES;
    Err(Failure::new(format!("the prompt is too long: expected at most {most} bytes")))
}

fn checked_text(text: String) -> Result<String> {
    check_length(text.len())?;
    if text.is_empty() {
        return Err(Failure::new("the prompt is empty: expected at least one character")
            .hint("try `pelton run \"Once upon a time\"`"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line_of(failure: &Failure) -> String {
        failure.line().expect("a line")
    }

    #[test]
    fn exactly_one_final_newline_is_dropped() {
        for (given, expected) in [("a", "a"), ("a\n", "a"), ("a\r\n", "a"), ("a\n\n", "a\n")] {
            assert_eq!(read_text(given.as_bytes()).expect(given), expected);
        }
    }

    #[test]
    fn empty_and_invalid_input_are_told_apart() {
        for empty in ["", "\n"] {
            assert!(line_of(&read_text(empty.as_bytes()).expect_err("empty")).contains("empty"));
        }
        let invalid = read_text(&b"abc\xff"[..]).expect_err("invalid");
        assert!(line_of(&invalid).contains("not valid UTF-8: bad byte at offset 3"));
    }

    #[test]
    fn an_endless_input_is_refused_at_the_limit() {
        let failure = read_text(std::io::repeat(b'x')).expect_err("too long");
        assert!(line_of(&failure).contains("too long"));
    }

    #[test]
    fn token_lists_are_parsed_and_the_bad_item_is_named() {
        assert_eq!(parse_tokens("1, 2,3"), Ok(vec![TokenId(1), TokenId(2), TokenId(3)]));
        assert_eq!(parse_tokens(""), Ok(Vec::new()));
        for bad in ["1,x", "1,-2", "1,,2", "4294967296"] {
            let error = parse_tokens(bad).expect_err(bad);
            assert!(error.contains("1,2,3"), "{error}");
        }
    }

    #[test]
    fn no_token_at_all_is_an_empty_prompt() {
        assert!(Prompt::gather(None, Some(&[])).is_err());
    }
}
