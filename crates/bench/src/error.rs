//! Why something cannot be measured.

use pelton_engine::{ExecutorError, SubmitError};
use pelton_llm::LlmError;
use pelton_sim::trace::TraceError;
use pelton_text::{TemplateError, TextError};

/// Shorthand of this crate.
pub type Result<T> = std::result::Result<T, BenchError>;

/// Why something cannot be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The configuration or an input asks for something that cannot be measured.
    #[error("{message}")]
    Invalid {
        /// Names the setting, its value and what was expected. Settings have the names of the
        /// flags of `pelton bench`.
        message: String,
        /// How to change it, if there is an obvious way.
        hint: Option<String>,
    },
    /// The engine or the runtime failed.
    #[error("{0}")]
    Failed(String),
    /// The table cannot be written.
    #[error("cannot write the table: {0}")]
    Output(#[source] std::io::Error),
    /// The runtime cannot be started.
    #[error(transparent)]
    Runtime(#[from] LlmError),
    /// The memory of the engine cannot be had.
    #[error(transparent)]
    Executor(#[from] ExecutorError),
    /// The engine refuses a request.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// A text cannot be turned into tokens.
    #[error(transparent)]
    Text(#[from] TextError),
    /// A conversation cannot be laid out by the model's chat template.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The trace is wrong.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

impl BenchError {
    /// Something that cannot be measured.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid { message: message.into(), hint: None }
    }

    /// Something that cannot be measured, and what to do about it.
    pub(crate) fn invalid_with_hint(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Invalid { message: message.into(), hint: Some(hint.into()) }
    }

    /// A failure that the caller could not have prevented.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::Failed(message.into())
    }
}
