//! What can go wrong between a text and its tokens.

use std::path::PathBuf;
use std::time::Duration;

use pelton_base::{ParamError, TokenId};
use pelton_engine::{SpecMethod, SubmitError};
use pelton_model::ModelError;
use pelton_sched::{ChoiceError, Refusal};
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
    /// A model for vectors was asked for text.
    #[error(
        "{model} is an embedding model ({architecture}): it makes vectors of texts and generates none"
    )]
    NotGenerative {
        /// The model.
        model: String,
        /// Its family.
        architecture: String,
    },
    /// A text without a token, of which a vector was asked for.
    #[error("input {index} is empty: expected at least one token")]
    EmptyInput {
        /// Which of the texts, from 0.
        index: usize,
    },
    /// A text too long for a vector.
    #[error(
        "input {index} has {n_tokens} tokens or more, at most {limit} fit; `truncate` cuts it to that"
    )]
    InputTooLong {
        /// Which of the texts, from 0.
        index: usize,
        /// Tokens of the text, as far as they were counted.
        n_tokens: usize,
        /// Most tokens of a text.
        limit: usize,
    },
    /// A vector with an element that is no finite number.
    #[error("the vector of input {index} is not finite: the weights overflow in this arithmetic")]
    NotFinite {
        /// Which of the texts, from 0.
        index: usize,
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
    /// A way to guess tokens that the model was not loaded with.
    #[error("`speculation.method`: `{asked}` was not loaded with this model; there is {available}")]
    NoSuchDrafter {
        /// Its name.
        asked: &'static str,
        /// Names of those that were, and of what needs no loading.
        available: String,
    },
    /// A parameter out of its range.
    #[error(transparent)]
    Param(#[from] ParamError),
    /// The engine does not take the request now, and may take it later.
    #[error("{why}; try again in {} s", whole_seconds(*.retry_after))]
    Refused {
        /// What there is too much of.
        overload: Overload,
        /// The figures, in words.
        why: String,
        /// When it may be taken.
        retry_after: Duration,
    },
    /// The engine accepts nothing any more.
    #[error("the engine is stopping and accepts no more requests")]
    Stopped,
    /// The engine never takes the request.
    #[error("the engine does not accept the request: {why}")]
    Unacceptable {
        /// Why.
        why: String,
    },
}

/// What there is too much of when a request is not taken now.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Overload {
    /// Requests that wait, whoever sent them.
    Queue,
    /// Waiting requests of one tenant.
    TenantQueue,
    /// Work ahead of the request for its first token to come within its target.
    Deadline,
}

/// Seconds, rounded up, and never none: "try again now" would be an invitation to a storm.
pub(crate) fn whole_seconds(wait: Duration) -> u64 {
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}

/// When to try again after an engine with too many waiting requests, which says nothing about it.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Why the scheduler does not take a request, in the words of this crate.
impl From<Refusal> for LlmError {
    fn from(refusal: Refusal) -> Self {
        let why = refusal.to_string();
        match refusal {
            Refusal::EmptyPrompt => Self::EmptyPrompt,
            Refusal::NothingToGenerate => {
                let (param, expected, got) = ("max_tokens", "at least 1", "0".to_owned());
                Self::Param(ParamError { param, expected, got })
            }
            Refusal::PromptTooLong { n_prompt, limit } => {
                // One token at least must come out.
                Self::ContextLength { n_prompt, limit, context: limit + 1 }
            }
            Refusal::TenantQueueFull { retry_after, .. } => {
                Self::Refused { overload: Overload::TenantQueue, why, retry_after }
            }
            Refusal::DeadlineUnreachable { retry_after, .. } => {
                Self::Refused { overload: Overload::Deadline, why, retry_after }
            }
            _ => Self::Unacceptable { why },
        }
    }
}

/// Why the engine does not take a request; the one place that knows all of its reasons.
impl From<SubmitError> for LlmError {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::Full { limit } => {
                let why = format!("{limit} requests are waiting already");
                Self::Refused { overload: Overload::Queue, why, retry_after: RETRY_AFTER }
            }
            SubmitError::Stopped => Self::Stopped,
            SubmitError::Refused(refusal) => refusal.into(),
            SubmitError::EmptyPrompt => Refusal::EmptyPrompt.into(),
            SubmitError::NothingToGenerate => Refusal::NothingToGenerate.into(),
            SubmitError::TooLong { n_prompt, limit } => {
                Refusal::PromptTooLong { n_prompt, limit }.into()
            }
            SubmitError::Invalid(error) => error.into(),
            SubmitError::NoSuchDrafter { asked, available } => {
                let everywhere = [SpecMethod::Off, SpecMethod::Auto].map(SpecMethod::name);
                let all: Vec<&str> = everywhere.into_iter().chain(available).collect();
                Self::NoSuchDrafter { asked, available: all.join(", ") }
            }
            other => Self::Unacceptable { why: other.to_string() },
        }
    }
}

impl From<ChoiceError> for LlmError {
    fn from(ChoiceError { option, why }: ChoiceError) -> Self {
        Self::Option { option, why }
    }
}

impl LlmError {
    /// The request parameter at fault, where there is one.
    pub fn param(&self) -> Option<&'static str> {
        match self {
            Self::EmptyPrompt | Self::ContextLength { .. } => Some("prompt"),
            Self::EmptyInput { .. } | Self::InputTooLong { .. } => Some("input"),
            Self::TokenOutOfRange { param, .. } => Some(param),
            Self::Param(error) => Some(error.param),
            Self::NoSuchDrafter { .. } => Some("speculation.method"),
            Self::NoTemplate { .. } | Self::Template(_) => Some("messages"),
            _ => None,
        }
    }

    /// When the same request may be taken, in whole seconds; `None` where it never will, or where
    /// nobody knows.
    pub fn retry_after_seconds(&self) -> Option<u64> {
        match self {
            Self::Refused { retry_after, .. } => Some(whole_seconds(*retry_after)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_for_now_says_when_to_try_again() {
        let retry_after = Duration::from_millis(2300);
        let (ttft, expected) = (Duration::from_millis(200), Duration::from_millis(900));
        let tenant = "blue".to_owned();
        let full = Refusal::TenantQueueFull { tenant, limit: 4, retry_after };
        let late = Refusal::DeadlineUnreachable { ttft, expected, retry_after };
        for (refusal, expected, word) in
            [(full, Overload::TenantQueue, "`blue`"), (late, Overload::Deadline, "900 ms")]
        {
            let error = LlmError::from(refusal);
            assert_eq!(error.retry_after_seconds(), Some(3), "rounded up");
            let text = error.to_string();
            assert!(text.contains(word) && text.ends_with("try again in 3 s"), "{text}");
            assert!(matches!(error, LlmError::Refused { overload, .. } if overload == expected));
        }
        let busy = LlmError::from(SubmitError::Full { limit: 7 });
        assert_eq!(busy.retry_after_seconds(), Some(1));
        assert_eq!(whole_seconds(Duration::ZERO), 1);
    }

    #[test]
    fn what_is_never_taken_names_its_parameter() {
        let long = Refusal::PromptTooLong { n_prompt: 9, limit: 7 };
        for (refusal, param) in [
            (Refusal::EmptyPrompt, "prompt"),
            (Refusal::NothingToGenerate, "max_tokens"),
            (long, "prompt"),
        ] {
            let error = LlmError::from(refusal);
            assert_eq!((error.param(), error.retry_after_seconds()), (Some(param), None));
        }
    }
}
