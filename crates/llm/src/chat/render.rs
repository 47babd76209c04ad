//! A conversation as the text that the model continues.

use pelton_base::{ParamError, TokenId};
use pelton_text::{ChatTemplate, EncodeOptions, Message, TemplateError, TemplateTokens};

use super::ChatOptions;
use crate::border::{TEMPLATE, guard};
use crate::error::LlmError;
use crate::llm::Llm;

/// A rendered conversation: its template writes the special tokens itself.
pub(crate) const RENDERED: EncodeOptions =
    EncodeOptions { add_special: false, parse_special: true };

impl Llm {
    /// Tokens of a conversation as [`chat`](Self::chat) sends it to the model, the opening of the
    /// answer included; may be more than the context holds.
    ///
    /// # Errors
    ///
    /// No template, or one that refuses the messages.
    pub fn count_chat(
        &self,
        messages: &[Message],
        options: &ChatOptions,
    ) -> Result<usize, LlmError> {
        let text = self.render(messages, options)?;
        Ok(self.encode_at_most(&text, RENDERED, usize::MAX)??.len())
    }

    /// A conversation as [`chat`](Self::chat) sends it to the model: the text, and its tokens, which may
    /// be more than the context holds.
    ///
    /// # Errors
    ///
    /// No template, or one that refuses the messages; an option that it does not know.
    pub fn render_chat(
        &self,
        messages: &[Message],
        options: &ChatOptions,
        add_special: bool,
    ) -> Result<(String, Vec<TokenId>), LlmError> {
        options.validate()?;
        let text = self.render(messages, options)?;
        let encode = EncodeOptions { add_special, ..RENDERED };
        let tokens = self.encode_at_most(&text, encode, usize::MAX)??;
        Ok((text, tokens))
    }

    /// A conversation as text.
    pub(crate) fn render(
        &self,
        messages: &[Message],
        options: &ChatOptions,
    ) -> Result<String, LlmError> {
        if let Some(text) = &options.template {
            return self.render_with(text, messages, options);
        }
        let template = self.parts().template.as_ref().map_err(|why| LlmError::NoTemplate {
            model: self.info().name.clone(),
            why: why.clone(),
        })?;
        let (messages, options) = self.parts().dialect.prepare(messages, options)?;
        Ok(guard(TEMPLATE, || template.render(&messages, &options))??)
    }

    /// A conversation as text by the template of a request, whose faults are the request's.
    fn render_with(
        &self,
        text: &str,
        messages: &[Message],
        options: &ChatOptions,
    ) -> Result<String, LlmError> {
        let fail = |error: TemplateError| -> LlmError {
            let (param, expected) = ("chat_template", "a template that renders these messages");
            ParamError { param, expected, got: error.to_string() }.into()
        };
        let known = self.template().map(|template| template.tokens().clone());
        let tokens = known.unwrap_or_else(|| self.template_tokens());
        let template = guard(TEMPLATE, || ChatTemplate::from_text(text, "the request", tokens))?;
        let template = template.map_err(fail)?;
        let dialect = self.parts().dialect.with_template(&template);
        let (messages, options) = dialect.prepare(messages, options)?;
        guard(TEMPLATE, || template.render(&messages, &options))?.map_err(fail)
    }

    /// The special tokens for a template, where the model has none of its own.
    fn template_tokens(&self) -> TemplateTokens {
        let tokenizer = self.tokenizer();
        let name = |token: Option<TokenId>| {
            let bytes = token.and_then(|token| tokenizer.token_bytes(token)).unwrap_or_default();
            String::from_utf8_lossy(bytes).into_owned()
        };
        let (bos, eos) = (name(tokenizer.bos()), name(tokenizer.eos()));
        let tokens = vec![("bos_token".to_owned(), bos), ("eos_token".to_owned(), eos)];
        TemplateTokens { tokens }
    }
}
