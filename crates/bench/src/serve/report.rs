//! A server as its clients saw it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use pelton_sim::report::Served;
use serde::Serialize;

use super::counters::Counters;
use super::requests::{Requests, Steadiness, Steady};
use crate::histogram::Histogram;
use crate::record::{Measure, Reads, Reported};

/// Requests that failed, by what went wrong.
pub type Failures = BTreeMap<String, Failure>;

/// Failures of one kind.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Failure {
    /// Number of requests.
    pub n: u64,
    /// The words that came with the first of them.
    pub example: String,
}

/// Why one request failed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Trouble {
    /// The kind, in a few words.
    pub(super) kind: String,
    /// The words of the system or of the server.
    pub(super) example: String,
}

impl Trouble {
    pub(super) fn new(kind: impl Into<String>, example: impl Into<String>) -> Self {
        Self { kind: kind.into(), example: example.into() }
    }

    /// Adds it to those before.
    pub(super) fn count(self, failures: &mut Failures) {
        let Self { kind, example } = self;
        failures.entry(kind).or_insert(Failure { n: 0, example }).n += 1;
    }
}

/// Processor time during the run, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Processor {
    /// Used by the load generator, which is this whole process.
    pub client_s: f64,
    /// Used by the server outside its models: HTTP, templates, tokenizers, events. Known of a
    /// Pelton that runs nothing else at the time.
    pub server_serving_s: Option<f64>,
    /// Used by the server's models.
    pub server_model_s: Option<f64>,
}

impl Processor {
    /// Used by the whole server.
    pub fn server_s(&self) -> Option<f64> {
        Some(self.server_serving_s? + self.server_model_s?)
    }
}

/// The report on a server.
#[derive(Clone, Debug, Serialize)]
pub struct ServeReport {
    /// Requests, latencies and throughput.
    #[serde(flatten)]
    pub served: Served,
    /// Failed requests, by what went wrong.
    pub failures: Failures,
    /// Answers whose tokens the server did not count; each event with text counts as a token.
    pub n_uncounted: u64,
    /// Answers shorter than asked for.
    pub n_short: u64,
    /// Requests that got an answer, and tokens of all answers.
    pub n_answers: u64,
    /// Tokens of all answers.
    pub n_tokens: u64,
    /// Refused requests.
    #[serde(skip)]
    pub(super) n_refused: u64,
    /// Processor time during the run.
    pub processor: Processor,
    /// The model that was asked for.
    #[serde(skip)]
    pub(super) model: String,
    /// The part of the run in which nothing grows.
    pub steady: Steadiness,
    /// The counters of the server; absent where they were not asked for or are not published.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counters: Option<Counters>,
    /// The whole answers.
    pub requests: Requests,
    /// Times between two events with text.
    #[serde(skip)]
    pub(super) gaps_ms: Vec<f64>,
    /// The shapes of all times.
    pub histograms: Histograms,
}

/// Times of a run by buckets; absent where there are none.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Histograms {
    /// To the first token.
    pub ttft: Option<Histogram>,
    /// Between two events with text.
    pub itl: Option<Histogram>,
    /// Per token after the first.
    pub tpot: Option<Histogram>,
    /// To the last token.
    pub end_to_end: Option<Histogram>,
}

impl Histograms {
    pub(super) fn new(requests: &Requests, gaps_ms: &[f64]) -> Self {
        let of = |times: &[f64]| Histogram::new(times.iter().copied());
        Self {
            ttft: of(&requests.ttft_ms),
            itl: of(gaps_ms),
            tpot: Histogram::new(requests.tpot_ms.iter().flatten().copied()),
            end_to_end: of(&requests.end_to_end_ms),
        }
    }
}

impl ServeReport {
    /// The reason of the first kind of failure where no request was answered; `None` where some
    /// were, or where none was sent.
    pub fn unanswered(&self) -> Option<String> {
        if self.n_answers > 0 {
            return None;
        }
        let failed = self.failures.iter().next();
        let failed = failed.map(|(kind, failure)| format!("{kind}: {}", failure.example));
        failed.or_else(|| self.served.unanswered())
    }
}

impl Reported for ServeReport {
    const KIND: &'static str = "serve";

    fn measures(&self) -> Vec<Measure> {
        let rate = self.served.reports().next().map(|report| {
            let samples = vec![report.all.output_tokens_per_s];
            Measure::rate("output", "tokens/s", samples)
        });
        rate.into_iter().chain(self.requests.measures()).collect()
    }

    fn is_interrupted(&self) -> bool {
        self.served.interrupted
    }

    fn threads(&self) -> Option<usize> {
        None
    }

    fn reads(&self) -> Option<Reads> {
        None
    }
}

impl ServeReport {
    /// A table, and what is odd about the run.
    pub fn render(&self) -> String {
        let mut text = self.served.render();
        text.push('\n');
        self.render_steady(&mut text);
        self.render_processor(&mut text);
        if self.n_short > 0 {
            line(
                &mut text,
                "short",
                &format!("{} answers are shorter than asked for", self.n_short),
            );
        }
        if self.n_uncounted > 0 {
            let n = self.n_uncounted;
            let why = format!(
                "the tokens of {n} answers are events with text: the server sends no usage"
            );
            line(&mut text, "uncounted", &why);
        }
        for (kind, Failure { n, example }) in &self.failures {
            line(&mut text, "failed", &format!("{n} x {kind}: {example}"));
        }
        text
    }

    fn render_steady(&self, text: &mut String) {
        let told = match &self.steady {
            Steadiness::TooShort => "not looked for: fewer than 50 whole answers".to_owned(),
            Steadiness::Unsteady => {
                "none: times still change past the middle of the run".to_owned()
            }
            Steadiness::Steady(steady) => {
                let Steady { from_s, to_s, n, output_tokens_per_s, ttft_ms, end_to_end_ms, .. } =
                    &**steady;
                format!(
                    "from {from_s:.1} to {to_s:.1} s, {n} requests: {output_tokens_per_s:.1} \
                     tokens/s, TTFT P50 {:.1} ms, P99 {:.1} ms, end to end P50 {:.1} ms",
                    ttft_ms.p50.value, ttft_ms.p99.value, end_to_end_ms.p50.value
                )
            }
        };
        line(text, "steady", &told);
    }

    fn render_processor(&self, text: &mut String) {
        let Processor { client_s, server_serving_s, server_model_s } = self.processor;
        let mut told = format!("client {client_s:.2} s");
        if let (Some(serving), Some(model)) = (server_serving_s, server_model_s) {
            put(&mut told, format_args!("; server {model:.2} s for models, {serving:.2} s beside"));
            let each = |n: u64| 1e6 * serving / n as f64;
            // Without an answer there is nothing to share the time among.
            if self.n_answers > 0 && self.n_tokens > 0 {
                put(
                    &mut told,
                    format_args!(
                        " ({:.0} µs a request, {:.1} µs a token)",
                        each(self.n_answers),
                        each(self.n_tokens)
                    ),
                );
            }
        }
        line(text, "processor", &told);
    }
}

fn line(text: &mut String, name: &str, what: &str) {
    put(text, format_args!("{name:<14}{what}\n"));
}

fn put(text: &mut String, args: std::fmt::Arguments<'_>) {
    text.write_fmt(args).expect("invariant: strings take everything");
}
