//! Logits processors: callbacks of the user, and one that keeps a row for NumPy.

use std::sync::{Arc, Mutex, PoisonError};

use numpy::{PyArray1, PyArrayMethods};
use pelton_base::TokenId;
use pelton_llm::{LogitsProcessor, Processors, RowContext};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

/// The first exception that a callback of a request raised.
pub(crate) type Fault = Arc<Mutex<Option<PyErr>>>;

/// The exception, if there is one.
pub(crate) fn take(fault: &Fault) -> Option<PyErr> {
    fault.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Adds a callback: `callback(prompt_token_ids, output_token_ids, logits)` changes the array in
/// place, or returns another.
pub(crate) fn push(processors: &mut Processors, callback: Py<PyAny>, fault: &Fault) {
    let (callback, fault) = (Arc::new(callback), Arc::clone(fault));
    processors.push(move |prompt| {
        Box::new(Callback {
            callback: Arc::clone(&callback),
            prompt: Arc::new(prompt.iter().map(|token| token.0).collect()),
            output: Vec::new(),
            fault: Arc::clone(&fault),
        })
    });
}

/// A callback at one answer.
#[derive(Clone, Debug)]
struct Callback {
    callback: Arc<Py<PyAny>>,
    prompt: Arc<Vec<u32>>,
    output: Vec<u32>,
    fault: Fault,
}

impl Callback {
    /// The array is NumPy's own memory and not the row itself, because the callback may keep it.
    fn call(&self, py: Python<'_>, logits: &mut [f32]) -> PyResult<()> {
        let row = PyArray1::from_slice(py, logits);
        let output: &[u32] = &self.output;
        let answer = self.callback.call1(py, (self.prompt.as_slice(), output, &row))?;
        let row = match answer.is_none(py) {
            true => row,
            false => answer.into_bound(py).cast_into::<PyArray1<f32>>().map_err(|error| {
                PyValueError::new_err(format!(
                    "a logits processor returns None or a float32 array of one dimension: {error}"
                ))
            })?,
        };
        let row = row.readonly();
        let row = row.as_slice()?;
        if row.len() != logits.len() {
            let (got, expected) = (row.len(), logits.len());
            let words = format!("a logits processor returned {got} logits, expected {expected}");
            return Err(PyValueError::new_err(words));
        }
        logits.copy_from_slice(row);
        Ok(())
    }
}

impl LogitsProcessor for Callback {
    fn apply(&mut self, _row: &RowContext, logits: &mut [f32]) {
        let called = Python::try_attach(|py| self.call(py, logits))
            .unwrap_or_else(|| Err(PyRuntimeError::new_err("the interpreter has ended")));
        if let Err(error) = called {
            let words = error.to_string();
            self.fault.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            // The engine ends this request alone; nothing is printed, as with a panic.
            std::panic::resume_unwind(Box::new(words));
        }
    }

    fn accepted(&mut self, token: TokenId) {
        self.output.push(token.0);
    }

    fn reserve(&mut self, n_tokens: usize) {
        self.output.reserve(n_tokens);
    }

    fn preserves_argmax(&self) -> bool {
        false
    }

    fn fork(&self) -> Box<dyn LogitsProcessor> {
        Box::new(self.clone())
    }
}

/// Keeps the row of logits that it sees last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keep(pub(crate) Arc<Mutex<Vec<f32>>>);

impl Keep {
    /// Adds it to the processors of a request.
    pub(crate) fn push(&self, processors: &mut Processors) {
        let keep = self.clone();
        processors.push(move |_prompt| Box::new(keep.clone()));
    }

    /// The row.
    pub(crate) fn take(&self) -> Vec<f32> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl LogitsProcessor for Keep {
    fn apply(&mut self, _row: &RowContext, logits: &mut [f32]) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = logits.to_vec();
    }

    fn accepted(&mut self, _token: TokenId) {}

    fn reserve(&mut self, _n_tokens: usize) {}

    /// It keeps the row as it is, but a greedy request would have none without it.
    fn preserves_argmax(&self) -> bool {
        false
    }

    fn fork(&self) -> Box<dyn LogitsProcessor> {
        Box::new(self.clone())
    }
}
