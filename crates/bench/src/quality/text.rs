//! A text as tokens, and the windows in which they are scored.

use std::ops::Range;

use pelton_base::TokenId;
use pelton_text::{TextError, Tokenizer};

use super::CHUNK_ROWS;
use crate::{BenchError, Result};

/// The length and distance of windows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Config {
    /// Tokens of a window.
    pub window: usize,
    /// Tokens from one window to the next.
    pub stride: usize,
}

impl Config {
    /// Checks the numbers against the context of the models.
    ///
    /// # Errors
    ///
    /// Names the flag that is out of range.
    pub fn new(window: Option<usize>, stride: Option<usize>, context: usize) -> Result<Self> {
        const DEFAULT_WINDOW: usize = 512;
        let window = window.unwrap_or(DEFAULT_WINDOW.min(context));
        if window < 2 || window > context {
            return Err(BenchError::invalid(format!(
                "`--window` is {window}: expected 2 to the context of {context} tokens"
            )));
        }
        let stride = stride.unwrap_or(window / 2);
        if stride == 0 || stride >= window {
            return Err(BenchError::invalid(format!(
                "`--stride` is {stride}: expected 1 to {}, less than the window",
                window - 1
            )));
        }
        Ok(Self { window, stride })
    }
}

/// A text as the tokens of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Tokens {
    /// Tokens that the tokenizer puts before every text.
    pub prefix: Vec<TokenId>,
    /// Tokens of the text.
    pub tokens: Vec<TokenId>,
    /// Bytes of each of these.
    n_bytes: Vec<usize>,
}

impl Tokens {
    /// The tokens of `text`, of which the first `limit` count.
    ///
    /// # Errors
    ///
    /// A text that the tokenizer refuses.
    pub fn new(
        tokenizer: &Tokenizer,
        text: &str,
        limit: Option<usize>,
    ) -> std::result::Result<Self, TextError> {
        let mut tokens = tokenizer.encode(text, false)?;
        tokens.truncate(limit.unwrap_or(usize::MAX));
        let n_bytes =
            tokens.iter().map(|token| tokenizer.token_bytes(*token).map_or(0, <[u8]>::len));
        let n_bytes = n_bytes.collect();
        // A tokenizer may also put tokens behind a text.
        let [plain, whole] = [false, true].map(|special| tokenizer.encode("a", special));
        let (plain, whole) = (plain?, whole?);
        let at = whole.windows(plain.len().max(1)).position(|part| part == plain);
        let prefix = whole[..at.unwrap_or(0)].to_vec();
        Ok(Self { prefix, tokens, n_bytes })
    }

    /// Tokens that no text was read for.
    #[cfg(test)]
    pub(super) fn of_ids(prefix: Vec<TokenId>, tokens: Vec<TokenId>) -> Self {
        let n_bytes = vec![1; tokens.len()];
        Self { prefix, tokens, n_bytes }
    }

    /// The windows over all tokens.
    pub(super) fn windows(&self, config: &Config) -> Vec<Window> {
        let n = self.tokens.len();
        let n_prefix = self.prefix.len().min(config.window - 1);
        let room = config.window - n_prefix;
        let stride = config.stride.min(room);
        let mut windows = Vec::new();
        // Without a prefix nothing stands before the first token.
        let mut scored = usize::from(n_prefix == 0);
        for start in (0..).step_by(stride) {
            if scored >= n {
                break;
            }
            let end = n.min(start + room);
            let prefix = &self.prefix[..n_prefix];
            let inputs = prefix.iter().chain(&self.tokens[start..end - 1]).copied().collect();
            windows.push(Window {
                inputs,
                targets: self.tokens[scored..end].to_vec(),
                n_bytes: self.n_bytes[scored..end].iter().sum(),
            });
            scored = end;
        }
        windows
    }

    /// Checks that something can be scored.
    ///
    /// # Errors
    ///
    /// Says how many tokens there are, and how many are needed.
    pub fn check(&self) -> Result<()> {
        let least = if self.prefix.is_empty() { 2 } else { 1 };
        match self.tokens.len() {
            n if n >= least => Ok(()),
            0 => Err(BenchError::invalid("the text is empty: expected at least 2 tokens")),
            n => Err(BenchError::invalid(format!(
                "the text is too short: {n} token, expected at least {least}"
            ))),
        }
    }
}

/// Tokens that a model reads, and those that its last rows are scored by.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Window {
    /// One for each row.
    pub(super) inputs: Vec<TokenId>,
    /// The tokens after the last rows.
    targets: Vec<TokenId>,
    /// Bytes of the targets.
    pub(super) n_bytes: usize,
}

impl Window {
    /// The first row that scores a token.
    pub(super) fn first_row(&self) -> usize {
        self.inputs.len() - self.targets.len()
    }

    /// All rows, a few at a time.
    pub(super) fn chunks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let n = self.inputs.len();
        (0..n).step_by(CHUNK_ROWS).map(move |first| first..n.min(first + CHUNK_ROWS))
    }

    /// The tokens that score these rows, without the rows that score none.
    pub(super) fn targets(&self, rows: &Range<usize>) -> &[TokenId] {
        let first = self.first_row();
        &self.targets[rows.start.max(first) - first..rows.end.max(first) - first]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(n: u32, prefix: &[u32]) -> Tokens {
        Tokens {
            prefix: prefix.iter().copied().map(TokenId).collect(),
            tokens: (0..n).map(TokenId).collect(),
            n_bytes: (0..n as usize).collect(),
        }
    }

    #[test]
    fn every_token_is_scored_once_from_the_row_before_it() {
        for (n, window, stride) in [(50, 8, 4), (50, 8, 7), (9, 8, 1), (2, 8, 4), (8, 8, 4)] {
            for prefix in [&[][..], &[100], &[100, 101]] {
                let text = tokens(n, prefix);
                let windows = text.windows(&Config { window, stride });
                let mut scored = Vec::new();
                for one in &windows {
                    assert!(one.inputs.len() < window, "{n} {window} {stride}");
                    for rows in one.chunks() {
                        let first = rows.start.max(one.first_row());
                        for (row, target) in (first..rows.end).zip(one.targets(&rows)) {
                            // In the text each token follows the one before it.
                            let before = one.inputs[row];
                            let is_first = row + 1 == prefix.len();
                            assert!(is_first || before.0 + 1 == target.0, "{before} {target}");
                            scored.push(*target);
                        }
                    }
                }
                let from = usize::from(prefix.is_empty());
                assert_eq!(scored, text.tokens[from..], "{n} {window} {stride} {prefix:?}");
                let n_bytes: usize = windows.iter().map(|one| one.n_bytes).sum();
                assert_eq!(n_bytes, (from..n as usize).sum::<usize>());
            }
        }
    }

    #[test]
    fn later_tokens_have_a_window_less_a_stride_before_them() {
        let text = tokens(100, &[]);
        for window in &text.windows(&Config { window: 16, stride: 4 })[1..] {
            assert!(window.first_row() + 1 >= 12, "{}", window.first_row());
        }
    }

    #[test]
    fn numbers_out_of_range_are_named() {
        for (window, stride, part) in [
            (Some(1), None, "`--window` is 1"),
            (Some(65), None, "context of 64"),
            (None, Some(0), "`--stride` is 0"),
            (Some(8), Some(8), "`--stride` is 8: expected 1 to 7"),
        ] {
            let error = Config::new(window, stride, 64).expect_err(part).to_string();
            assert!(error.contains(part), "{error}");
        }
        assert_eq!(Config::new(None, None, 64).ok(), Some(Config { window: 64, stride: 32 }));
        assert_eq!(Config::new(None, None, 4096).ok(), Some(Config { window: 512, stride: 256 }));
    }
}
