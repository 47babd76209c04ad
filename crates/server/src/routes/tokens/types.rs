//! JSON of the routes about tokens.

use pelton_base::TokenId;

use crate::error::ApiError;
use crate::limits;
use crate::routes::chat::Rendered;
use crate::wire::{Fields, Parameters, token_ids};

/// Reads the query of `GET /tokenizer_info`: the name of a model.
///
/// # Errors
///
/// Names a parameter that is unknown.
pub(super) fn asked_model(query: &Parameters) -> Result<Option<String>, ApiError> {
    match query.iter().find(|(name, _)| *name != "model") {
        Some((name, _)) => Err(Parameters::unknown(name, "model")),
        None => Ok(query.iter().next().map(|(_, model)| model.to_owned())),
    }
}

/// A request for the tokens of something.
pub(super) struct TokenizeBody {
    pub(super) model: Option<String>,
    pub(super) source: Source,
    /// Whether the texts of the tokens are listed, too.
    pub(super) with_texts: bool,
}

/// The source of the tokens.
pub(super) enum Source {
    /// vLLM's `prompt`.
    Text { text: String, add_special: bool },
    /// llama-server's `content`.
    Content { text: String, add_special: bool, parse_special: bool, with_pieces: bool },
    /// A conversation.
    Chat { rendered: Box<Rendered>, add_special: bool },
}

impl TokenizeBody {
    /// Reads one of the three.
    pub(super) fn read(bytes: &[u8], trusts_templates: bool) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(bytes)?;
        let with_texts = fields.bool("return_token_strs")?.unwrap_or(false);
        if fields.has("messages") {
            let (model, rendered, add_special) = Rendered::read(fields, trusts_templates)?;
            let add_special = add_special.unwrap_or(false);
            let source = Source::Chat { rendered: Box::new(rendered), add_special };
            return Ok(Self { model, source, with_texts });
        }
        let model = fields.string("model")?;
        let source = match (fields.string("prompt")?, fields.string("content")?) {
            (Some(_), Some(_)) => {
                let message = "`content` is llama-server's name of `prompt`: give one";
                return Err(ApiError::param("content", message));
            }
            (Some(text), None) => {
                let add_special = fields.bool("add_special_tokens")?.unwrap_or(true);
                Source::Text { text, add_special }
            }
            (None, Some(text)) => Source::Content {
                text,
                add_special: fields.bool("add_special")?.unwrap_or(false),
                parse_special: fields.bool("parse_special")?.unwrap_or(true),
                with_pieces: fields.bool("with_pieces")?.unwrap_or(false),
            },
            (None, None) => {
                let message = "`prompt` is missing: expected `prompt`, `messages` or `content`";
                return Err(ApiError::param("prompt", message));
            }
        };
        fields.finish()?;
        Ok(Self { model, source, with_texts })
    }
}

/// A request for the text of tokens.
#[derive(Debug)]
pub(super) struct DetokenizeBody {
    pub(super) model: Option<String>,
    pub(super) tokens: Vec<TokenId>,
}

impl DetokenizeBody {
    pub(super) fn read(bytes: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(bytes)?;
        let raw = fields
            .take("tokens")
            .ok_or_else(|| ApiError::param("tokens", "`tokens` is missing"))?;
        let body = Self {
            tokens: token_ids("tokens", raw, limits::PROMPT_TOKENS)?,
            model: fields.string("model")?,
        };
        fields.finish()?;
        Ok(body)
    }
}
