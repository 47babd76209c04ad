//! Errors of the library as exceptions: `ValueError` for an input, `RuntimeError` otherwise.

use pelton_base::FinishReason;
use pelton_cli::NotOpened;
use pelton_llm::{Finish, LlmError};
use pyo3::PyErr;
use pyo3::exceptions::{PyRuntimeError, PyValueError};

/// A request or a text that was refused.
pub(crate) fn refused(error: LlmError) -> PyErr {
    let words = error.to_string();
    match error {
        LlmError::Refused { .. }
        | LlmError::Stopped
        | LlmError::Failed
        | LlmError::Panicked(_)
        | LlmError::NotFinite { .. } => PyRuntimeError::new_err(words),
        _ => PyValueError::new_err(words),
    }
}

/// A model that was not opened.
pub(crate) fn not_opened(error: NotOpened) -> PyErr {
    match error.is_input {
        true => PyValueError::new_err(error.message),
        false => PyRuntimeError::new_err(error.message),
    }
}

/// An answer that ended with an error.
pub(crate) fn ended(finish: &Finish) -> PyErr {
    PyRuntimeError::new_err(match &finish.fault {
        Some(fault) => fault.to_string(),
        None => "the engine failed on this request".to_owned(),
    })
}

/// The reason of an ending under vLLM's name.
pub(crate) fn reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        _ => "abort",
    }
}
