//! The access log: one line for each request, at the level `info`, when its answer has ended.
//!
//! ```text
//!   POST /v1/completions 200 in 1204 ms; 12 prompt tokens (0 cached), first token after 83 ms, 64 tokens: stop
//!   GET /health 200 in 0 ms
//! ```
//!
//! An answer ends when its last byte is handed to the connection, or when the client has gone.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use axum::http::{Method, StatusCode};
use axum::response::Response;
use pelton_base::{FinishReason, Usage};
use pelton_llm::Timings;
use tracing::Span;

use crate::metrics::ending;

/// The line of one request, written when all who know about it have dropped it.
#[derive(Debug)]
pub(crate) struct Line {
    method: Method,
    path: String,
    since: Instant,
    span: Span,
    status: Mutex<Option<StatusCode>>,
    generated: Mutex<Option<Generated>>,
}

/// The part of a line on generated text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Generated {
    pub(crate) usage: Usage,
    pub(crate) timings: Timings,
    /// Why the last answer ended; `None` when the client went away.
    pub(crate) reason: Option<FinishReason>,
}

impl Line {
    /// A line for a request that begins now. `None` where the log does not have this level.
    pub(crate) fn new(method: &Method, path: &str, span: &Span) -> Option<Arc<Self>> {
        let (method, path) = (method.clone(), path.to_owned());
        let line = || {
            let (status, generated) = (Mutex::new(None), Mutex::new(None));
            let span = span.clone();
            Arc::new(Self { method, path, since: Instant::now(), span, status, generated })
        };
        tracing::enabled!(tracing::Level::INFO).then(line)
    }

    pub(crate) fn note(&self, generated: Generated) {
        *self.generated.lock().unwrap_or_else(PoisonError::into_inner) = Some(generated);
    }

    /// Adds the status, and hands the line to the connection, which keeps it until the answer's body
    /// is sent.
    pub(crate) fn follow(self: Arc<Self>, response: &mut Response) {
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = Some(response.status());
        response.extensions_mut().insert(self);
    }

    fn text(&self) -> String {
        let status = *self.status.lock().unwrap_or_else(PoisonError::into_inner);
        let generated = *self.generated.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = format!("{} {} ", self.method, self.path);
        let _ = match status {
            Some(status) => write!(text, "{}", status.as_u16()),
            None => write!(text, "without an answer"),
        };
        let _ = write!(text, " in {} ms", self.since.elapsed().as_millis());
        if let Some(Generated { usage, timings, reason }) = generated {
            let Usage { prompt_tokens, cached_tokens, completion_tokens, .. } = usage;
            let _ = write!(text, "; {prompt_tokens} prompt tokens ({cached_tokens} cached)");
            if let Some(seconds) = timings.ttft_seconds {
                let _ = write!(text, ", first token after {:.0} ms", seconds * 1000.0);
            }
            let reason = reason.map_or("client gone", ending);
            let _ = write!(text, ", {completion_tokens} tokens: {reason}");
        }
        text
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.span.in_scope(|| tracing::info!("{}", self.text()));
    }
}
