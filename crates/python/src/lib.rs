//! The extension module of the Python package: `pelton._pelton`.
//!
//! ```text
//! pelton/__init__.py   LLM, AsyncLLM, SamplingParams, outputs: plain Python, typed
//!        │
//! _pelton.Engine ───▶ Crowd (many prompts, one wait)  ───▶ pelton_llm::Llm
//!        Stream  ───▶ one Generating; `poll` rings a callback of asyncio
//!        Vectors ───▶ pelton_llm::Embedder
//!        main    ───▶ pelton_cli::main, the whole command line
//! ```
//!
//! The interpreter's lock is given up while this module computes or waits; a wait looks for Ctrl-C
//! every [`PATIENCE`](wait::PATIENCE). The engine's thread takes the lock only to call a callback of
//! the user (a logits processor), and gives it up again before it goes on.
//!
//! **Architecture invariant:** nothing is copied twice. Rows of logits and vectors move into NumPy
//! arrays that own their memory.
#![forbid(unsafe_code)]
#![cfg(feature = "extension")]

mod ask;
mod beams;
mod bell;
mod crowd;
mod engine;
mod errors;
mod processor;
mod stream;
mod vectors;
mod wait;

use std::ffi::OsString;

use pyo3::prelude::*;

/// The extension module.
#[pymodule]
mod _pelton {
    #[pymodule_export]
    use super::engine::Engine;
    #[pymodule_export]
    use super::stream::Stream;
    #[pymodule_export]
    use super::vectors::Vectors;
    #[pymodule_export]
    use super::{main, open, setting_keys};
}

/// Runs the command line and returns the exit code.
#[pyfunction]
fn main(py: Python<'_>, words: Vec<OsString>) -> u8 {
    py.detach(|| pelton_cli::main(words))
}

/// Names of the settings that `open` takes.
#[pyfunction]
fn setting_keys() -> Vec<String> {
    pelton_cli::setting_keys()
}

/// Loads a model: an `Engine`, or `Vectors`.
#[pyfunction]
#[pyo3(signature = (settings, vectors=None))]
fn open(
    py: Python<'_>,
    settings: Vec<(String, String)>,
    vectors: Option<bool>,
) -> PyResult<Py<PyAny>> {
    let opened = py.detach(|| pelton_cli::open(&settings, vectors)).map_err(errors::not_opened)?;
    Ok(match opened {
        pelton_cli::Opened::Text(llm) => Py::new(py, engine::Engine::new(llm))?.into_any(),
        pelton_cli::Opened::Vectors(model) => Py::new(py, vectors::Vectors::new(model))?.into_any(),
    })
}
