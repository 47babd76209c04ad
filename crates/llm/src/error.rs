//! What can go wrong between a text and its tokens.

use std::path::PathBuf;

use pelton_base::{ParamError, TokenId};
use pelton_model::ModelError;
use pelton_text::{TemplateError, TextError};

use crate::hub::HubError;

/// A model that cannot be loaded or a request that cannot be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LlmError {
    /// The name of a model is no folder, no file and no hub id.
    #[error("no model `{name}`: {why}")]
    UnknownModel {
        /// What was given.
        name: String,
        /// What was looked for.
        why: String,
    },
    /// The hub did not give the model.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// The checkpoint cannot be loaded.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The engine cannot be started.
    #[error(transparent)]
    Engine(#[from] pelton_engine::ExecutorError),
    /// The tokenizer cannot be loaded, or cannot encode a text.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The chat template does not accept these messages.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// A model was asked to chat that has no usable chat template.
    #[error("{model} cannot chat: {why}; use a plain completion")]
    NoTemplate {
        /// The model.
        model: String,
        /// What is missing or wrong.
        why: String,
    },
    /// The tokenizer knows tokens that the model has no embedding for.
    #[error(
        "the tokenizer of {model} has {n_tokenizer} tokens, the embedding has {n_embedding} rows: \
         expected at most as many tokens as rows"
    )]
    VocabMismatch {
        /// The model.
        model: String,
        /// Tokens of the tokenizer.
        n_tokenizer: usize,
        /// Rows of the embedding.
        n_embedding: usize,
    },
    /// A setting contradicts the model or the machine.
    #[error("`{option}`: {why}")]
    Option {
        /// The option.
        option: &'static str,
        /// What is wrong and what was expected.
        why: String,
    },
    /// `generation_config.json` cannot be read or has a value out of range.
    #[error("{}: {why}", path.display())]
    GenerationConfig {
        /// The file.
        path: PathBuf,
        /// The field and what was expected.
        why: String,
    },
    /// A prompt without a token.
    #[error("the prompt is empty: expected at least one token")]
    EmptyPrompt,
    /// A prompt that leaves no room for an answer.
    #[error("the prompt has {n_prompt} tokens; at most {limit} fit into the context of {context}")]
    ContextLength {
        /// Tokens of the prompt.
        n_prompt: usize,
        /// Most tokens of a prompt.
        limit: usize,
        /// Most tokens of a sequence.
        context: usize,
    },
    /// A token id beyond the vocabulary.
    #[error("`{param}`: token {token} is not below the vocabulary size {vocab_size}")]
    TokenOutOfRange {
        /// Where it stands.
        param: &'static str,
        /// The token.
        token: TokenId,
        /// Tokens that the model knows.
        vocab_size: usize,
    },
    /// A parameter out of its range.
    #[error(transparent)]
    Param(#[from] ParamError),
    /// Too many requests are waiting.
    #[error("{n_waiting} requests are waiting already; try again later")]
    Busy {
        /// Requests waiting.
        n_waiting: usize,
    },
    /// The engine accepts nothing any more.
    #[error("the engine is stopping and accepts no more requests")]
    Stopped,
    /// The engine does not accept the request.
    #[error("the engine refused the request: {why}")]
    Refused {
        /// Why.
        why: String,
    },
}

impl LlmError {
    /// The request parameter at fault, where there is one.
    pub fn param(&self) -> Option<&'static str> {
        match self {
            Self::EmptyPrompt | Self::ContextLength { .. } => Some("prompt"),
            Self::TokenOutOfRange { param, .. } => Some(param),
            Self::Param(error) => Some(error.param),
            Self::NoTemplate { .. } | Self::Template(_) => Some("messages"),
            _ => None,
        }
    }
}
