//! Requests against the bounds of their model.

use pelton_base::{ParamError, SamplingParams, TokenId};

use crate::error::LlmError;
use crate::llm::Llm;
use crate::request::Generation;
use crate::texts::SamplingTexts;

impl Llm {
    /// Refuses more answers to one prompt than this model gives.
    pub(crate) fn check_choices(&self, generation: &Generation) -> Result<(), ParamError> {
        let (asked, most) = (generation.n_sequences(), self.max_choices);
        if asked <= most {
            return Ok(());
        }
        // The width of a search is asked for in the same two fields.
        let param = if asked == generation.n as usize { "n" } else { "best_of" };
        let expected = "at most as many answers as `--max-choices` allows";
        Err(ParamError { param, expected, got: format!("{asked}, and {most} are allowed") })
    }

    /// Refuses a prompt that is empty, too long, or has tokens that the model lacks.
    pub(crate) fn check_prompt(&self, prompt: &[TokenId]) -> Result<(), LlmError> {
        let context = self.info().context_tokens;
        let of_source = self.engine().most_source_tokens();
        // An answer has at least one token.
        let limit = context.saturating_sub(1);
        match prompt.len() {
            0 => Err(LlmError::EmptyPrompt),
            n_prompt if of_source.is_some_and(|limit| n_prompt > limit) => {
                Err(LlmError::SourceLength { n_prompt, limit: of_source.unwrap_or_default() })
            }
            n_prompt if n_prompt > limit => {
                Err(LlmError::ContextLength { n_prompt, limit, context })
            }
            _ => self.check_tokens("prompt", prompt),
        }
    }

    /// Refuses an answer whose least length does not fit into the context.
    pub(crate) fn check_length(&self, n_prompt: usize, min_tokens: usize) -> Result<(), LlmError> {
        let room = self.engine().answer_room(n_prompt);
        if min_tokens <= room {
            return Ok(());
        }
        let (param, expected) = ("min_tokens", "at most the tokens that the prompt leaves free");
        let got = format!("{min_tokens} where it leaves {room}");
        Err(ParamError { param, expected, got }.into())
    }

    /// Refuses texts in a request to a model without a tokenizer, where they mean no tokens.
    pub(crate) fn check_texts(&self, generation: &Generation) -> Result<(), LlmError> {
        if self.parts().has_text {
            return Ok(());
        }
        let SamplingTexts { bad_words, logit_bias, banned, dry_breakers } = &generation.texts;
        let texts = [
            ("stop", !generation.stop.is_empty()),
            ("bad_words", !bad_words.is_empty()),
            ("logit_bias", !(logit_bias.is_empty() && banned.is_empty())),
            ("dry_sequence_breakers", dry_breakers.is_some()),
            ("prediction", generation.prediction.is_some()),
        ];
        if let Some((param, _)) = texts.into_iter().find(|(_, is_given)| *is_given) {
            let expected = "without text where the model has no tokenizer";
            return Err(ParamError { param, expected, got: "a text".to_owned() }.into());
        }
        if generation.form.is_some() {
            let why = "a form is one of texts, and the model has no tokenizer".to_owned();
            return Err(LlmError::Form { path: generation.form_field.clone(), why });
        }
        Ok(())
    }

    /// Refuses sampling that names tokens which the model does not have.
    pub(crate) fn check_sampling(&self, sampling: &SamplingParams) -> Result<(), LlmError> {
        let biased = sampling.logit_bias.iter().map(|(token, _)| token);
        self.check_tokens("logit_bias", biased)?;
        self.check_tokens("allowed_token_ids", sampling.allowed_tokens.iter().flatten())?;
        self.check_tokens("bad_words", sampling.bad_words.iter().flatten())
    }

    /// Refuses tokens that the model does not have.
    pub(crate) fn check_tokens<'a>(
        &self,
        param: &'static str,
        tokens: impl IntoIterator<Item = &'a TokenId>,
    ) -> Result<(), LlmError> {
        let vocab_size = self.info().vocab_size;
        match tokens.into_iter().find(|token| token.0 as usize >= vocab_size) {
            Some(&token) => Err(LlmError::TokenOutOfRange { param, token, vocab_size }),
            None => Ok(()),
        }
    }
}
