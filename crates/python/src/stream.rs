//! One request whose answers are read while they grow.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use pelton_base::{FinishReason, TokenId};
use pelton_llm::{Event, EventToken, Generating};
use pyo3::prelude::*;

use crate::bell;
use crate::errors;
use crate::processor::{self, Fault};
use crate::wait::{self, PATIENCE};

/// A log probability: of the token itself, then the likeliest tokens with id, value and text.
pub(crate) type Logprobs = (f32, Vec<(u32, f32, String)>);

/// A piece of an answer for Python: number of the answer, text, tokens, their log probabilities,
/// their texts, the reason of the end, and the stop string behind it.
pub(crate) type Piece = (
    usize,
    String,
    Vec<u32>,
    Option<Vec<Logprobs>>,
    Vec<String>,
    Option<&'static str>,
    Option<String>,
);

/// A growing answer. Dropping it aborts the request.
#[pyclass(frozen, module = "pelton._pelton")]
pub(crate) struct Stream {
    /// Tokens of the prompt.
    #[pyo3(get)]
    prompt_token_ids: Vec<u32>,
    /// `None` once it has ended or was aborted.
    generating: Mutex<Option<Generating>>,
    fault: Fault,
}

impl Stream {
    pub(crate) fn new(prompt: &[TokenId], generating: Generating, fault: Fault) -> Self {
        let prompt_token_ids = ids(prompt);
        Self { prompt_token_ids, generating: Mutex::new(Some(generating)), fault }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Generating>> {
        // An event is taken whole or not at all.
        self.generating.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next event, if it has come; `Ready(None)` after the last.
    fn try_next(&self, waker: &Waker) -> Poll<Option<Event>> {
        let mut generating = self.lock();
        let Some(open) = generating.as_mut() else { return Poll::Ready(None) };
        let polled = open.poll_next(&mut Context::from_waker(waker));
        if matches!(polled, Poll::Ready(None)) {
            *generating = None;
        }
        polled
    }

    fn piece(&self, event: Event) -> PyResult<Piece> {
        let finish = match event.finish {
            Some(finish) if finish.reason == FinishReason::Error => {
                *self.lock() = None;
                return Err(processor::take(&self.fault).unwrap_or_else(|| errors::ended(&finish)));
            }
            finish => finish,
        };
        let (tokens, logprobs, texts) = described(&event.tokens);
        let (reason, stop) = match finish {
            Some(finish) => (Some(errors::reason(finish.reason)), finish.stop),
            None => (None, None),
        };
        Ok((event.choice, event.text, tokens, logprobs, texts, reason, stop))
    }
}

#[pymethods]
impl Stream {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Waits for the next piece.
    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Piece>> {
        let event = wait::until(py, || {
            let (waker, started) = (wait::waker(), Instant::now());
            loop {
                if let Poll::Ready(event) = self.try_next(&waker) {
                    return Some(event);
                }
                std::thread::park_timeout(PATIENCE.saturating_sub(started.elapsed()));
                if started.elapsed() >= PATIENCE {
                    return None;
                }
            }
        })?;
        event.map(|event| self.piece(event)).transpose()
    }

    /// Whether there is news, and the next piece (`None` at the end). Where there is none,
    /// `callback` is called once there is.
    fn poll(&self, py: Python<'_>, callback: Py<PyAny>) -> PyResult<(bool, Option<Piece>)> {
        let waker = bell::waker(callback)?;
        match py.detach(|| self.try_next(&waker)) {
            Poll::Pending => Ok((false, None)),
            Poll::Ready(event) => Ok((true, event.map(|event| self.piece(event)).transpose()?)),
        }
    }

    /// Ends the request; its memory is free for other requests within one step.
    fn abort(&self, py: Python<'_>) {
        py.detach(|| *self.lock() = None);
    }
}

/// Numbers of tokens.
pub(crate) fn ids(tokens: &[TokenId]) -> Vec<u32> {
    tokens.iter().map(|token| token.0).collect()
}

/// Numbers, log probabilities (where there are any) and texts of tokens. Texts come only with log
/// probabilities.
pub(crate) fn described(tokens: &[EventToken]) -> (Vec<u32>, Option<Vec<Logprobs>>, Vec<String>) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let numbers = tokens.iter().map(|token| token.id.0).collect();
    let mut logprobs = Vec::new();
    let mut texts = Vec::new();
    for token in tokens {
        if let Some(of) = &token.logprob {
            let top = of.top.iter().map(|top| (top.id.0, top.logprob, text(&top.bytes)));
            logprobs.push((of.logprob, top.collect()));
            texts.push(text(&token.bytes));
        }
    }
    (numbers, (logprobs.len() == tokens.len()).then_some(logprobs), texts)
}
