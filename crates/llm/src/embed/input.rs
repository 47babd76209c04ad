//! From a text to the tokens that the model computes.

use pelton_base::{ParamError, TokenId};
use pelton_model::embed::TypedTokens;
use pelton_text::{EncodeOptions, TextError};

use super::{EmbedInput, Embedder};
use crate::error::LlmError;

/// Bytes per token of a prefix that surely has enough tokens.
const BYTES_PER_TOKEN: usize = 32;

impl Embedder {
    /// The prompt of this name, or the default prompt.
    pub(super) fn prompt(&self, name: Option<&str>) -> Result<&str, LlmError> {
        match name.or(self.spec.default_prompt.as_deref()) {
            None => Ok(""),
            Some(name) => match self.spec.prompts.get(name) {
                Some(prompt) => Ok(prompt),
                None => {
                    let (param, expected) = ("prompt_name", "the name of a prompt of the model");
                    let known = match &self.info.prompts[..] {
                        [] => "it has none".to_owned(),
                        names => format!("there are: {}", names.join(", ")),
                    };
                    let found: String = name.chars().take(80).collect();
                    let got = format!("`{found}`; {known}");
                    Err(ParamError { param, expected, got }.into())
                }
            },
        }
    }

    /// The tokens of each input.
    pub(super) fn inputs(
        &self,
        inputs: &[EmbedInput],
        prompt: &str,
        truncate: bool,
    ) -> Result<Vec<TypedTokens>, LlmError> {
        let limit = self.info.max_tokens;
        let tokens = |(index, input)| {
            self.tokens_within(index, input, prompt, truncate, limit).map(TypedTokens::from)
        };
        inputs.iter().enumerate().map(tokens).collect()
    }

    /// The tokens of input `index`, at most `limit`.
    pub(super) fn tokens_within(
        &self,
        index: usize,
        input: &EmbedInput,
        prompt: &str,
        truncate: bool,
        limit: usize,
    ) -> Result<Vec<TokenId>, LlmError> {
        let tokens = match input {
            EmbedInput::Tokens(tokens) => {
                let n_kept = if truncate { tokens.len().min(limit) } else { tokens.len() };
                let tokens = &tokens[..n_kept];
                let vocab_size = self.info.vocab_size;
                if let Some(&token) = tokens.iter().find(|t| t.0 as usize >= vocab_size) {
                    return Err(LlmError::TokenOutOfRange { param: "input", token, vocab_size });
                }
                tokens.to_vec()
            }
            EmbedInput::Text(text) if text.is_empty() => {
                return Err(LlmError::EmptyInput { index });
            }
            EmbedInput::Text(text) => {
                let mut text = format!("{prompt}{text}");
                if self.spec.lower_case {
                    text = text.to_lowercase();
                }
                match truncate {
                    true => self.cut(&text, limit)?,
                    false => self.encode(index, &text, limit)?,
                }
            }
        };
        match tokens.len() {
            0 => Err(LlmError::EmptyInput { index }),
            n_tokens if n_tokens > limit => Err(LlmError::InputTooLong { index, n_tokens, limit }),
            _ => Ok(tokens),
        }
    }

    /// Tokens of a text; a text that is far too long is refused without encoding all of it.
    fn encode(&self, index: usize, text: &str, limit: usize) -> Result<Vec<TokenId>, LlmError> {
        let options = EncodeOptions { add_special: true, parse_special: true };
        match self.tokenizer.encode_at_most(text, options, limit) {
            Err(TextError::TooManyTokens { at_least, .. }) => {
                Err(LlmError::InputTooLong { index, n_tokens: at_least, limit })
            }
            other => Ok(other?),
        }
    }

    /// The first tokens of a text and the special tokens that end every text, together `limit`.
    fn cut(&self, text: &str, limit: usize) -> Result<Vec<TokenId>, LlmError> {
        let encode = |text: &str, add_special| {
            self.tokenizer.encode_with(text, EncodeOptions { add_special, parse_special: true })
        };
        let mut n_bytes = limit.saturating_mul(BYTES_PER_TOKEN);
        let (whole, inner) = loop {
            let beginning = &text[..text.floor_char_boundary(n_bytes)];
            let inner = encode(beginning, false)?;
            if inner.len() > limit || beginning.len() == text.len() {
                break (encode(beginning, true)?, inner);
            }
            n_bytes = n_bytes.saturating_mul(4);
        };
        if whole.len() <= limit {
            return Ok(whole);
        }
        // The special tokens after the text are the tokens of the whole that follow its own.
        let n_around = whole.len().saturating_sub(inner.len());
        let n_before = (0..=n_around).find(|&n| whole[n..].starts_with(&inner)).unwrap_or(n_around);
        let after = &whole[(n_before + inner.len()).min(whole.len())..];
        let n_kept = limit.saturating_sub(after.len());
        let mut tokens = whole[..n_kept].to_vec();
        tokens.extend_from_slice(after);
        tokens.truncate(limit);
        Ok(tokens)
    }
}
