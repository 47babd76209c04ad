//! From the prompt of a request to its tokens.

use pelton_base::TokenId;
use pelton_text::{EncodeOptions, TextError};

use crate::border::{TOKENIZER, guard};
use crate::error::LlmError;
use crate::llm::Llm;
use crate::request::{Generation, Prompt, Truncation};

/// A prompt of which only the end is used may have this many times as many tokens as the context holds;
/// it takes time to encode all of them.
const LONG_PROMPTS: usize = 16;

impl Llm {
    /// Tokens of a prompt to continue. A text with a gap adds the tokens that end its filling to the
    /// stop tokens of `generation`.
    pub(crate) fn prompt_tokens(
        &self,
        prompt: Prompt,
        generation: &mut Generation,
    ) -> Result<Vec<TokenId>, LlmError> {
        match prompt {
            Prompt::Tokens(mut tokens) => {
                self.truncate(&mut tokens, generation);
                Ok(tokens)
            }
            Prompt::Text(text) if text.is_empty() => Err(LlmError::EmptyPrompt),
            Prompt::Text(text) => {
                let add_special = generation.input.add_special.unwrap_or(true);
                let options = EncodeOptions { add_special, parse_special: true };
                self.encode(&text, options, generation)
            }
            Prompt::Gap { prefix, suffix } => self.gap_tokens(&prefix, &suffix, generation),
        }
    }

    /// Tokens of a text; a text that is far too long is refused without encoding all of it.
    pub(crate) fn encode(
        &self,
        text: &str,
        options: EncodeOptions,
        generation: &Generation,
    ) -> Result<Vec<TokenId>, LlmError> {
        let context = self.info().context_tokens;
        let limit = match generation.input.truncate {
            None => context.saturating_sub(1),
            Some(_) => context.saturating_mul(LONG_PROMPTS),
        };
        let mut tokens = self.encode_at_most(text, options, limit)??;
        self.truncate(&mut tokens, generation);
        Ok(tokens)
    }

    /// Leaves the end of a prompt, as far as the request wants it cut.
    fn truncate(&self, tokens: &mut Vec<TokenId>, generation: &Generation) {
        let n_most = match generation.input.truncate {
            None => return,
            Some(Truncation::Tokens(n)) => n,
            Some(Truncation::ToContext) => {
                let n_answer = generation.max_tokens.unwrap_or(1).max(1);
                let most = self.info().context_tokens.saturating_sub(n_answer).max(1);
                self.engine().most_source_tokens().map_or(most, |of_source| of_source.min(most))
            }
        };
        tokens.drain(..tokens.len().saturating_sub(n_most));
    }

    /// The text before and after a gap, as the model was trained to fill it.
    fn gap_tokens(
        &self,
        prefix: &str,
        suffix: &str,
        generation: &mut Generation,
    ) -> Result<Vec<TokenId>, LlmError> {
        let limit = self.info().context_tokens.saturating_sub(1);
        let gap = self.tokenizer().gap().ok_or(LlmError::NoGap)?;
        // Names of special tokens in the texts are text too.
        let plain = EncodeOptions { add_special: false, parse_special: false };
        let prefix = self.encode_at_most(prefix, plain, limit)??;
        let suffix = guard(TOKENIZER, || self.tokenizer().encode_continuing(suffix, limit))??;
        let mut tokens = Vec::new();
        if generation.input.add_special.unwrap_or(true) {
            tokens.extend(self.tokenizer().beginning()?);
        }
        tokens.extend(gap.around(&prefix, &suffix));
        if tokens.len() > limit {
            let at_least = tokens.len();
            return Err(TextError::TooManyTokens { at_least, limit }.into());
        }
        generation.stop_tokens.extend(gap.ends().iter().copied());
        Ok(tokens)
    }
}
