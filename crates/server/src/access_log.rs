//! The access log: one line for each request, at the level `info`, when its answer has ended.
//!
//! ```text
//!   POST /v1/completions 200 in 1204 ms; 12 prompt tokens (0 cached), first token after 83 ms, 64 tokens: stop
//!   GET /health 200 in 0 ms
//! ```
//!
//! With `--log-format json` it is an object instead, whose fields are listed in `docs/observing.md`. Both
//! forms are events of their own, and the subscriber of the process lets one of them through.
//!
//! An answer ends when its last byte is handed to the connection, or when the client has gone.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use pelton_base::{FinishReason, Usage};
use pelton_llm::Timings;
use tracing::Span;

use crate::metrics::ending;
use crate::otlp::Traced;
use crate::outcome::Outcome;
use crate::request_id;

/// The line of one request, written when all who know about it have dropped it.
#[derive(Debug)]
pub(crate) struct Line {
    method: Method,
    path: String,
    since: Instant,
    span: Span,
    status: Mutex<Option<StatusCode>>,
    generated: Mutex<Option<Generated>>,
    id: String,
    traced: Traced,
}

/// Target of the events that are objects.
const JSON: &str = "pelton_server::access_json";

/// The part of a line on generated text.
#[derive(Clone, Debug)]
struct Generated {
    model: String,
    tenant: String,
    usage: Usage,
    timings: Timings,
    /// Why the last answer ended; `None` when the client went away.
    reason: Option<FinishReason>,
}

impl Line {
    /// A line for a request that begins now. `None` where the log does not have this level.
    pub(crate) fn new(request: &Request, span: &Span, traced: Traced) -> Option<Arc<Self>> {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let id = request_id::of(request.headers()).to_owned();
        let line = || {
            let (status, generated) = (Mutex::new(None), Mutex::new(None));
            let span = span.clone();
            let since = Instant::now();
            Arc::new(Self { method, path, since, span, status, generated, id, traced })
        };
        let is_logged = tracing::enabled!(tracing::Level::INFO)
            || tracing::enabled!(target: JSON, tracing::Level::INFO);
        is_logged.then(line)
    }

    /// Adds the outcome of the request.
    pub(crate) fn note(&self, outcome: &Outcome<'_>, tenant: &str) {
        let reason = outcome.reasons.last().copied().filter(|_| outcome.is_whole());
        let (usage, timings) = (outcome.usage, outcome.timings);
        let (model, tenant) = (outcome.model.name().to_owned(), tenant.to_owned());
        let generated = Generated { model, tenant, usage, timings, reason };
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
        let generated = self.generated.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = format!("{} {} ", self.method, self.path);
        let _ = match status {
            Some(status) => write!(text, "{}", status.as_u16()),
            None => write!(text, "without an answer"),
        };
        let _ = write!(text, " in {} ms", self.since.elapsed().as_millis());
        if let Some(Generated { usage, timings, reason, .. }) = *generated {
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

impl Line {
    /// The event whose fields become an object.
    fn object(&self) {
        let status = *self.status.lock().unwrap_or_else(PoisonError::into_inner);
        let generated = self.generated.lock().unwrap_or_else(PoisonError::into_inner);
        let generated = generated.as_ref();
        let tokens = |of: fn(&Usage) -> usize| generated.map(|generated| of(&generated.usage));
        let reason = generated.map(|generated| generated.reason.map_or("client_gone", ending));
        tracing::info!(
            target: JSON,
            request_id = self.id,
            trace_id = self.traced.id(),
            method = self.method.as_str(),
            path = self.path,
            status = status.map(|status| status.as_u16()),
            duration_seconds = self.since.elapsed().as_secs_f64(),
            tenant = generated.map(|generated| generated.tenant.as_str()),
            model = generated.map(|generated| generated.model.as_str()),
            prompt_tokens = tokens(|usage| usage.prompt_tokens),
            cached_tokens = tokens(|usage| usage.cached_tokens),
            completion_tokens = tokens(|usage| usage.completion_tokens),
            queue_seconds = generated.and_then(|generated| generated.timings.queue_seconds),
            ttft_seconds = generated.and_then(|generated| generated.timings.ttft_seconds),
            finish_reason = reason,
            "request"
        );
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.span.in_scope(|| {
            tracing::info!("{}", self.text());
            self.object();
        });
    }
}
