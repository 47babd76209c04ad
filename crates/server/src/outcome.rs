//! The end of a request that generated text, for all that count: metrics, the log, usage.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::MatchedPath;
use axum::http::request::Parts as HeadParts;
use pelton_base::{FinishReason, Usage};
use pelton_llm::{Timings, Trace};

use crate::access::Caller;
use crate::access_log::Line;
use crate::models::Model;
use crate::otlp::{Stated, Traced};
use crate::request_id;
use crate::wire::Routed;

/// A request whose answers have ended, or whose client has gone.
#[derive(Debug)]
pub(crate) struct Outcome<'a> {
    pub(crate) caller: Caller,
    pub(crate) model: &'a Model,
    /// The request itself.
    pub(crate) about: &'a About,
    /// Tokens of all prompts, each counted once, and of all answers.
    pub(crate) usage: Usage,
    pub(crate) timings: Timings,
    /// The number of answers that were asked for.
    pub(crate) n_choices: usize,
    pub(crate) asked: Asked,
    /// The steps of the answers.
    pub(crate) traces: &'a [Trace],
    /// Why the answers ended that did, in this order; the client left before the others.
    pub(crate) reasons: &'a [FinishReason],
}

/// Lengths of answers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    /// Most tokens of an answer, where the request says so.
    pub(crate) max_tokens: Option<usize>,
    /// Tokens of the longest answer.
    pub(crate) longest_tokens: usize,
}

/// Times of the parts of a request, in seconds; `None` for parts that it did not reach.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Parts {
    /// Before the first step.
    pub(crate) queue: Option<f64>,
    /// From the first step to the first token.
    pub(crate) prefill: Option<f64>,
    /// From the first token to the last.
    pub(crate) decode: Option<f64>,
    /// From the first step to the last token.
    pub(crate) inference: Option<f64>,
    pub(crate) ttft: Option<f64>,
    /// Between two tokens of an answer.
    pub(crate) tpot: Option<f64>,
    /// From the arrival to the last token.
    pub(crate) whole: f64,
}

impl Outcome<'_> {
    /// Times of the request's parts.
    pub(crate) fn parts(&self) -> Parts {
        let Timings { queue_seconds: queue, ttft_seconds: ttft, total_seconds: whole, .. } =
            self.timings;
        // The rate is of all answers together, the time of each answer.
        let rate = self.timings.generation_tokens_per_second;
        Parts {
            queue,
            prefill: ttft.zip(queue).map(|(ttft, queue)| (ttft - queue).max(0.0)),
            decode: ttft.map(|ttft| (whole - ttft).max(0.0)),
            inference: queue.filter(|_| ttft.is_some()).map(|queue| (whole - queue).max(0.0)),
            ttft,
            tpot: rate.map(|rate| self.n_choices as f64 / rate),
            whole,
        }
    }

    /// Whether every answer has ended.
    pub(crate) fn is_whole(&self) -> bool {
        self.reasons.len() == self.n_choices
    }
}

/// A request as it came.
#[derive(Debug)]
pub(crate) struct About {
    /// The path of its route, such as `/v1/models/{*id}`.
    pub(crate) route: Box<str>,
    /// Its `X-Request-Id`.
    pub(crate) id: Box<str>,
    /// When its head had arrived.
    pub(crate) since: Instant,
    /// Its line in the access log, where there is one.
    pub(crate) line: Option<Arc<Line>>,
    pub(crate) traced: Traced,
    /// For its span.
    pub(crate) stated: Arc<Stated>,
    /// Where the rule is noted that chose its model.
    pub(crate) routed: Option<Routed>,
}

impl About {
    /// The request with this head.
    pub(crate) fn of(parts: &HeadParts) -> Self {
        let route = parts.extensions.get::<MatchedPath>();
        let traced = parts.extensions.get::<Traced>().copied();
        Self {
            route: route.map_or("", MatchedPath::as_str).into(),
            id: request_id::of(&parts.headers).into(),
            since: Instant::now(),
            line: parts.extensions.get().cloned(),
            traced: traced.unwrap_or_else(|| Traced::of(&parts.headers)),
            stated: parts.extensions.get().cloned().unwrap_or_default(),
            routed: parts.extensions.get().cloned(),
        }
    }
}
