//! A loaded model for vectors of texts.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};

use numpy::PyArray1;
use pelton_base::TokenId;
use pelton_llm::{EmbedInput, EmbedRequest, Embedder, LlmError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::ask::Text;
use crate::errors;
use crate::wait::{self, PATIENCE};

/// A loaded model for vectors.
#[pyclass(frozen, module = "pelton._pelton")]
pub(crate) struct Vectors {
    embedder: Arc<Embedder>,
}

impl Vectors {
    pub(crate) fn new(embedder: Arc<Embedder>) -> Self {
        Self { embedder }
    }
}

#[pymethods]
impl Vectors {
    /// Facts about the model.
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let info = self.embedder.info();
        let facts = PyDict::new(py);
        facts.set_item("name", &info.name)?;
        facts.set_item("architecture", &info.architecture)?;
        facts.set_item("vocab_size", info.vocab_size)?;
        facts.set_item("max_model_len", info.max_tokens)?;
        facts.set_item("n_dimensions", info.n_dimensions)?;
        facts.set_item("weight_bytes", info.weight_bytes)?;
        facts.set_item("n_threads", info.n_threads)?;
        Ok(facts)
    }

    /// Vectors of texts or tokens, as float32 arrays `[dimensions]` that own their memory, and the
    /// number of tokens of each.
    #[pyo3(signature = (texts, dimensions=None, prompt_name=None, truncate=false))]
    fn embed<'py>(
        &self,
        py: Python<'py>,
        texts: Vec<Text>,
        dimensions: Option<usize>,
        prompt_name: Option<String>,
        truncate: bool,
    ) -> PyResult<Vec<(Bound<'py, PyArray1<f32>>, usize)>> {
        let inputs = texts.into_iter().map(|text| match text {
            Text::Words(text) => EmbedInput::Text(text),
            Text::Tokens(ids) => EmbedInput::Tokens(ids.into_iter().map(TokenId).collect()),
        });
        let inputs = inputs.collect();
        let request = EmbedRequest { inputs, dimensions, prompt_name, truncate };
        let (sender, receiver) = sync_channel(1);
        let submitted = py.detach(|| {
            let prepared = self.embedder.prepare(&request)?;
            self.embedder.submit(prepared, move |answer| {
                // A receiver that is gone was interrupted.
                let _ = sender.send(answer);
            })
        });
        // Dropping the ticket early takes the texts out of the queue.
        let _ticket = submitted.map_err(errors::refused)?;
        let answer = wait::until(py, move || match receiver.recv_timeout(PATIENCE) {
            Ok(answer) => Some(answer),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Err(LlmError::Stopped)),
        })?;
        let answer = answer.map_err(errors::refused)?;
        let arrays = answer.vectors.into_iter().map(|vector| PyArray1::from_vec(py, vector));
        Ok(arrays.zip(answer.n_tokens).collect())
    }

    /// Ends the thread of the model.
    fn shutdown(&self) {
        self.embedder.shutdown();
    }
}
