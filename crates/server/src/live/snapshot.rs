//! The JSON of `GET /v1/live`.

use std::sync::Arc;

use pelton_llm::{Embedder, EngineMetrics, Llm};
use serde::Serialize;

use super::control::Readings;
use super::meter::{Quantiles, Times, WINDOW_SECONDS, rate};
use super::past::{Past, Rates, Sample, kv_usage};
use super::scale::Signals;
use super::scope::Sum;
use crate::metrics::ENDINGS;

/// The server at one moment.
#[derive(Debug, Serialize)]
pub(crate) struct Snapshot {
    pub(super) object: &'static str,
    /// Seconds since 1970.
    pub(super) time: f64,
    pub(super) uptime_seconds: f64,
    pub(super) version: &'static str,
    /// `ok`, `draining` or `failed`.
    pub(super) status: &'static str,
    /// `all`, or `tenant` where only the caller's own requests are shown.
    pub(super) view: &'static str,
    pub(super) window_seconds: u64,
    pub(super) total: Traffic,
    pub(super) models: Vec<ModelView>,
    pub(super) tenants: Vec<TenantView>,
}

/// Requests and their times.
#[derive(Debug, Serialize)]
pub(crate) struct Traffic {
    running: usize,
    waiting: usize,
    requests_per_second: f64,
    prompt_tokens_per_second: f64,
    generated_tokens_per_second: f64,
    /// Share of the prompt tokens of the window that was found in the cache.
    cache_hit_ratio: Option<f64>,
    ended: Ended,
    /// Since the start.
    prompt_tokens: u64,
    cached_tokens: u64,
    generated_tokens: u64,
    queue_seconds: Option<Quantiles>,
    ttft_seconds: Option<Quantiles>,
    tpot_seconds: Option<Quantiles>,
    e2e_seconds: Option<Quantiles>,
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<TrafficHistory>,
}

/// Answers since the start.
#[derive(Debug, Serialize)]
struct Ended {
    stop: u64,
    length: u64,
    abort: u64,
    error: u64,
}

/// Counts for each of the last complete seconds, the oldest first.
#[derive(Debug, Serialize)]
struct TrafficHistory {
    requests: Vec<u64>,
    prompt_tokens: Vec<u64>,
    generated_tokens: Vec<u64>,
}

impl Traffic {
    /// `shows_history` adds the counts of each second.
    pub(super) fn new(sum: Sum, second: u64, shows_history: bool) -> Self {
        const { assert!(ENDINGS.len() == 4) };
        let counts = sum.counts;
        let [stop, length, abort, error] = counts.ended;
        let (n_prompt, n_cached) = (sum.prompt.total(), sum.cached.total());
        let quantiles = |of: fn(&Times) -> Option<f32>| {
            Quantiles::of(sum.times.iter().filter_map(of).collect())
        };
        Self {
            running: counts.running,
            waiting: counts.waiting,
            requests_per_second: rate(&sum.requests.0, second),
            prompt_tokens_per_second: rate(&sum.prompt.0, second),
            generated_tokens_per_second: rate(&sum.generated.0, second),
            cache_hit_ratio: (n_prompt > 0).then(|| n_cached as f64 / n_prompt as f64),
            ended: Ended { stop, length, abort, error },
            prompt_tokens: counts.prompt_tokens,
            cached_tokens: counts.cached_tokens,
            generated_tokens: counts.generated_tokens,
            queue_seconds: quantiles(|times| times.queue),
            ttft_seconds: quantiles(|times| times.ttft),
            tpot_seconds: quantiles(|times| times.tpot),
            e2e_seconds: quantiles(|times| times.e2e),
            history: shows_history.then(|| TrafficHistory {
                requests: sum.requests.0.to_vec(),
                prompt_tokens: sum.prompt.0.to_vec(),
                generated_tokens: sum.generated.0.to_vec(),
            }),
        }
    }
}

/// A model.
#[derive(Debug, Serialize)]
pub(crate) struct ModelView {
    pub(super) name: String,
    /// `text` or `vectors`.
    pub(super) kind: &'static str,
    #[serde(flatten)]
    pub(super) traffic: Traffic,
    /// Absent where only the caller's own requests are shown, and for models that make vectors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) engine: Option<EngineView>,
    /// Absent where only the caller's own requests are shown, and for models that generate text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) vectors: Option<VectorsView>,
    /// Absent as `engine` is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) control: Option<Readings>,
    /// Absent as `engine` is, and before the first second is over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) scale: Option<Signals>,
}

/// A tenant.
#[derive(Debug, Serialize)]
pub(crate) struct TenantView {
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) traffic: Traffic,
}

/// The engine of a model that generates text.
#[derive(Debug, Serialize)]
pub(crate) struct EngineView {
    running: usize,
    waiting: usize,
    #[serde(flatten)]
    rates: Rates,
    kv: KvView,
    step: StepView,
    /// From a token to the next one of the same answer, as the steps of the engine end.
    inter_token_seconds: Option<Quantiles>,
    drafts: DraftsView,
    preemptions: u64,
    restarts: u64,
    failed_steps: u64,
    history: EngineHistory,
}

/// Memory for keys and values.
#[derive(Debug, Serialize)]
struct KvView {
    blocks: usize,
    free_blocks: usize,
    usage_ratio: f64,
    block_tokens: usize,
    copied_blocks: u64,
    swapped_out_blocks: u64,
    swapped_in_blocks: u64,
}

/// Steps of an engine.
#[derive(Debug, Serialize)]
struct StepView {
    /// Since the start.
    steps: u64,
    seconds: Option<Quantiles>,
    limit_tokens: usize,
    limit_requests: usize,
    limits_shrunk: u64,
    limits_grown: u64,
}

/// Speculative decoding since the start.
#[derive(Debug, Serialize)]
struct DraftsView {
    drafted_tokens: u64,
    accepted_tokens: u64,
    acceptance_ratio: Option<f64>,
    tokens_per_step: Option<f64>,
    saved_seconds: f64,
    forced_tokens: u64,
}

/// The engine in each of the last seconds, the oldest first.
#[derive(Debug, Serialize)]
struct EngineHistory {
    running: Vec<usize>,
    waiting: Vec<usize>,
    kv_usage_ratio: Vec<f64>,
}

impl EngineView {
    pub(super) fn new(llm: &Arc<Llm>, second: u64, past: &Past) -> Self {
        let metrics = llm.metrics();
        let now = Sample::of(&metrics);
        Self {
            running: metrics.n_running,
            waiting: metrics.n_waiting,
            rates: past.rates(second, &now),
            kv: KvView {
                blocks: metrics.n_blocks,
                free_blocks: metrics.n_free_blocks,
                usage_ratio: kv_usage(&metrics),
                block_tokens: metrics.block_tokens,
                copied_blocks: metrics.copied_blocks,
                swapped_out_blocks: metrics.swapped_out_blocks,
                swapped_in_blocks: metrics.swapped_in_blocks,
            },
            step: StepView {
                steps: metrics.n_steps,
                seconds: of_chart(metrics.recent.step),
                limit_tokens: metrics.limits.batch_tokens,
                limit_requests: metrics.limits.running,
                limits_shrunk: metrics.n_shrunk,
                limits_grown: metrics.n_grown,
            },
            inter_token_seconds: of_chart(metrics.recent.tpot),
            drafts: DraftsView::new(&metrics),
            preemptions: metrics.n_preemptions,
            restarts: metrics.n_restarts,
            failed_steps: metrics.n_failed_steps,
            history: EngineHistory {
                running: past.history(|sample| sample.running),
                waiting: past.history(|sample| sample.waiting),
                kv_usage_ratio: past.history(|sample| sample.kv_usage),
            },
        }
    }
}

impl DraftsView {
    fn new(metrics: &EngineMetrics) -> Self {
        let spec = &metrics.spec;
        let share = spec.n_accepted as f64 / spec.n_drafted.max(1) as f64;
        Self {
            drafted_tokens: spec.n_drafted,
            accepted_tokens: spec.n_accepted,
            acceptance_ratio: (spec.n_drafted > 0).then_some(share),
            tokens_per_step: spec.tokens_per_step(),
            saved_seconds: spec.saved_ns as f64 * 1e-9,
            forced_tokens: spec.n_forced,
        }
    }
}

/// Quantiles of one of the engine's charts, which cover about the last half minute.
fn of_chart(chart: pelton_llm::Quantiles) -> Option<Quantiles> {
    let seconds = |ns: u64| ns as f64 * 1e-9;
    let pelton_llm::Quantiles { n, p50_ns, p95_ns, p99_ns } = chart;
    let quantiles =
        Quantiles { n, p50: seconds(p50_ns), p95: seconds(p95_ns), p99: seconds(p99_ns) };
    (n > 0).then_some(quantiles)
}

/// A model that makes vectors of texts; counts since the start.
#[derive(Debug, Serialize)]
pub(crate) struct VectorsView {
    waiting: usize,
    finished: u64,
    texts: u64,
    tokens: u64,
    steps: u64,
    step_seconds: f64,
}

impl VectorsView {
    pub(super) fn new(embedder: &Embedder) -> Self {
        let metrics = embedder.metrics();
        Self {
            waiting: metrics.n_waiting,
            finished: metrics.n_finished,
            texts: metrics.n_texts,
            tokens: metrics.n_tokens,
            steps: metrics.n_steps,
            step_seconds: metrics.step_time.as_secs_f64(),
        }
    }
}

/// Length of the window, for the snapshot.
pub(super) const WINDOW: u64 = WINDOW_SECONDS;
