//! Counters for `GET /metrics`.
//!
//! ```text
//!   the engine's own counters     read for each request (`Figures`)
//!   per tenant                    times of answers, how they ended, cached tokens, refusals
//! ```
//!
//! The names are those that dashboards know from vLLM, with `pelton_` in front and units where they
//! had none. The label `tenant` has only the configured names as values, so the number of series
//! is bounded.
//!
//! **Architecture invariant:** every server has a registry of its own; there is no global one.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use pelton_base::{FinishReason, TenantId, Usage};
use pelton_llm::{Embedder, EngineMetrics, Llm, SpecStats, Timings};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use crate::served::Served;

/// Upper ends of the times to a first token, in seconds.
const TTFT_SECONDS: [f64; 18] = [
    0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];
/// Upper ends of the times per further token, in seconds.
const TPOT_SECONDS: [f64; 15] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5];
/// Upper ends of the times of whole requests, in seconds.
const E2E_SECONDS: [f64; 15] =
    [0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 240.0];

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct OfTenant {
    tenant: String,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct OfEnding {
    tenant: String,
    finished_reason: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct OfRefusal {
    tenant: String,
    reason: &'static str,
}

type Times = Family<OfTenant, Histogram, fn() -> Histogram>;

/// The counters of one server.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    tenants: Vec<String>,
    ttft: Times,
    tpot: Times,
    e2e: Times,
    ended: Family<OfEnding, Counter>,
    refused: Family<OfRefusal, Counter>,
    cache_queries: Family<OfTenant, Counter>,
    cache_hits: Family<OfTenant, Counter>,
}

impl Metrics {
    pub(crate) fn new(served: Served, tenants: Vec<String>) -> Self {
        let times = Times::new_with_constructor;
        let mut metrics = Self {
            registry: Registry::with_prefix("pelton"),
            tenants,
            ttft: times(|| Histogram::new(TTFT_SECONDS)),
            tpot: times(|| Histogram::new(TPOT_SECONDS)),
            e2e: times(|| Histogram::new(E2E_SECONDS)),
            ended: Family::default(),
            refused: Family::default(),
            cache_queries: Family::default(),
            cache_hits: Family::default(),
        };
        metrics.register(served);
        metrics
    }

    fn register(&mut self, served: Served) {
        let registry = &mut self.registry;
        let version = ("version", env!("CARGO_PKG_VERSION").to_owned());
        let build = Info::new(vec![version, ("model_name", served.name().to_owned())]);
        registry.register("build", "Version of this server, and name of its model", build);
        for (name, help, times) in [
            ("time_to_first_token_seconds", "Time from a request to its first token", &self.ttft),
            (
                "time_per_output_token_seconds",
                "Mean time between two tokens of an answer",
                &self.tpot,
            ),
            (
                "e2e_request_latency_seconds",
                "Time from a request to the last token of its last answer",
                &self.e2e,
            ),
        ] {
            registry.register(name, help, times.clone());
        }
        let help = "Answers that ended, by reason";
        registry.register("request_success", help, self.ended.clone());
        let help = "Requests that were refused, by reason";
        registry.register("requests_refused", help, self.refused.clone());
        let help = "Prompt tokens that were looked up in the prefix cache";
        registry.register("prefix_cache_queries", help, self.cache_queries.clone());
        let help = "Prompt tokens that were found in the prefix cache";
        registry.register("prefix_cache_hits", help, self.cache_hits.clone());
        match served {
            Served::Text(llm) => registry.register_collector(Box::new(Figures { llm })),
            Served::Vectors(embedder) => {
                registry.register_collector(Box::new(VectorFigures { embedder }));
            }
        }
    }

    fn of_tenant(&self, tenant: TenantId) -> OfTenant {
        OfTenant { tenant: self.name(tenant) }
    }

    fn name(&self, tenant: TenantId) -> String {
        self.tenants[tenant.0 as usize].clone()
    }

    /// An answer has ended.
    pub(crate) fn ended(&self, tenant: TenantId, reason: FinishReason) {
        let labels = OfEnding { tenant: self.name(tenant), finished_reason: ending(reason) };
        self.ended.get_or_create(&labels).inc();
    }

    /// All answers to a request have ended.
    pub(crate) fn answered(
        &self,
        tenant: TenantId,
        n_choices: usize,
        usage: Usage,
        timings: Timings,
    ) {
        let labels = self.of_tenant(tenant);
        if let Some(seconds) = timings.ttft_seconds {
            self.ttft.get_or_create(&labels).observe(seconds);
        }
        if let Some(rate) = timings.generation_tokens_per_second {
            // The rate is of all answers together, the time of each answer.
            self.tpot.get_or_create(&labels).observe(n_choices as f64 / rate);
        }
        self.e2e.get_or_create(&labels).observe(timings.total_seconds);
        self.cache_queries.get_or_create(&labels).inc_by(usage.prompt_tokens as u64);
        self.cache_hits.get_or_create(&labels).inc_by(usage.cached_tokens as u64);
    }

    /// A request was refused.
    pub(crate) fn refused(&self, tenant: TenantId, reason: &'static str) {
        let labels = OfRefusal { tenant: self.name(tenant), reason };
        self.refused.get_or_create(&labels).inc();
    }

    /// Everything, or the series of one tenant, in the OpenMetrics text format.
    pub(crate) fn text(&self, only: Option<TenantId>) -> String {
        let mut text = String::new();
        text::encode(&mut text, &self.registry).expect("invariant: strings take what is written");
        match only {
            None => text,
            Some(tenant) => series_of(&text, &self.name(tenant)),
        }
    }
}

/// The series of `text` with this tenant as a label, and their descriptions.
fn series_of(text: &str, tenant: &str) -> String {
    // The text format writes values of labels like this. A quotation mark inside a value is written
    // with a backslash, so no other value contains the whole label.
    let value = tenant.replace('\\', r"\\").replace('"', "\\\"");
    let label = format!("tenant=\"{value}\"");
    let (mut kept, mut descriptions) = (String::new(), String::new());
    for line in text.split_inclusive('\n') {
        if line == "# EOF\n" {
            kept.push_str(line);
        } else if line.starts_with('#') {
            // Descriptions stand before the series, and are kept with the first one that is kept.
            if line.starts_with("# HELP") {
                descriptions.clear();
            }
            descriptions.push_str(line);
        } else if line.contains(&label) {
            kept.push_str(&std::mem::take(&mut descriptions));
            kept.push_str(line);
        }
    }
    kept
}

/// The engine's counters at the moment of a request for metrics.
struct Figures {
    llm: Arc<Llm>,
}

impl Collector for Figures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let metrics = self.llm.metrics();
        encode_gauges(&metrics, &mut encoder)?;
        encode_counts(&metrics, &mut encoder)?;
        encode_times(&metrics, &mut encoder)?;
        encode_places(&metrics.spec, &mut encoder)
    }
}

/// Figures of this moment.
fn encode_gauges(
    metrics: &EngineMetrics,
    encoder: &mut DescriptorEncoder<'_>,
) -> Result<(), fmt::Error> {
    let n_used = metrics.n_blocks.saturating_sub(metrics.n_free_blocks);
    let usage = n_used as f64 / metrics.n_blocks.max(1) as f64;
    for (name, help, value) in [
        ("num_requests_running", "Requests that hold KV blocks", metrics.n_running as f64),
        ("num_requests_waiting", "Requests that wait for KV blocks", metrics.n_waiting as f64),
        ("kv_cache_usage_ratio", "Share of the KV blocks that is in use", usage),
        (
            "step_limit_tokens",
            "Most tokens of a step, as the controller sets it",
            metrics.limits.batch_tokens as f64,
        ),
        (
            "step_limit_requests",
            "Most requests at once, as the controller sets it",
            metrics.limits.running as f64,
        ),
        (
            "step_prediction_error_ratio",
            "Mean relative error of the predicted time of a step",
            metrics.cost_error_ppm as f64 * 1e-6,
        ),
        (
            "spec_tokens_per_step",
            "Mean new tokens of a step of one sequence that verified drafts",
            metrics.spec.tokens_per_step().unwrap_or(1.0),
        ),
        (
            "spec_saved_seconds",
            "Estimated time that drafting has saved",
            metrics.spec.saved_ns as f64 * 1e-9,
        ),
    ] {
        let gauge = ConstGauge::new(value);
        gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
    }
    Ok(())
}

/// Counts since the start.
fn encode_counts(
    metrics: &EngineMetrics,
    encoder: &mut DescriptorEncoder<'_>,
) -> Result<(), fmt::Error> {
    for (name, help, value) in [
        ("prompt_tokens", "Prompt tokens that were computed", metrics.prompt_tokens),
        ("generation_tokens", "Tokens that were generated", metrics.generated_tokens),
        ("num_preemptions", "Times that a request was preempted", metrics.n_preemptions),
        ("requests_submitted", "Requests that the engine accepted", metrics.n_submitted),
        ("requests_finished", "Requests that left the engine", metrics.n_finished),
        ("swapped_out_blocks", "KV blocks copied to the host", metrics.swapped_out_blocks),
        ("swapped_in_blocks", "KV blocks copied back from the host", metrics.swapped_in_blocks),
        ("copied_blocks", "Shared KV blocks copied before a write", metrics.copied_blocks),
        ("step_limits_shrunk", "Times that the controller lowered a limit", metrics.n_shrunk),
        ("step_limits_grown", "Times that the controller raised a limit", metrics.n_grown),
        ("spec_draft_tokens", "Tokens that were drafted", metrics.spec.n_drafted),
        ("spec_accepted_tokens", "Drafted tokens that were accepted", metrics.spec.n_accepted),
        (
            "spec_verified_rows",
            "Steps of single sequences that verified drafts",
            metrics.spec.n_verified_rows,
        ),
        ("forced_tokens", "Tokens that the rule of a request forced", metrics.spec.n_forced),
        ("spec_failures", "Failures of proposers", metrics.spec.n_failures),
        ("scheduler_steps", "Steps of the engine", metrics.n_steps),
        ("scheduler_failed_steps", "Steps that failed as a whole", metrics.n_failed_steps),
        ("requests_panicked", "Requests ended by a panic of their own code", metrics.n_panicked),
        ("engine_restarts", "Times that the engine started anew after a panic", metrics.n_restarts),
    ] {
        let counter = ConstCounter::new(value);
        counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)?;
    }
    Ok(())
}

/// Times since the start, in seconds.
fn encode_times(
    metrics: &EngineMetrics,
    encoder: &mut DescriptorEncoder<'_>,
) -> Result<(), fmt::Error> {
    for (name, help, time) in [
        ("scheduler_step_seconds", "Time spent in steps of the engine", metrics.step_time),
        (
            "scheduler_plan_seconds",
            "Time of the scheduler in steps of the engine",
            metrics.schedule_time,
        ),
        (
            "scheduler_execute_seconds",
            "Time of the model in steps of the engine",
            metrics.execute_time,
        ),
        (
            "spec_draft_seconds",
            "Time spent on drafting",
            Duration::from_nanos(metrics.spec.draft_ns),
        ),
    ] {
        let seconds = ConstCounter::new(time.as_secs_f64());
        let kind = seconds.metric_type();
        seconds.encode(encoder.encode_descriptor(name, help, None, kind)?)?;
    }
    Ok(())
}

/// Drafts by position: the first draft of a step is at position 1. Positions without drafts are left
/// out.
fn encode_places(stats: &SpecStats, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
    for (name, help, counts) in [
        ("spec_position_draft_tokens", "Drafted tokens, by position", &stats.drafted_at),
        (
            "spec_position_accepted_tokens",
            "Accepted drafted tokens, by position",
            &stats.accepted_at,
        ),
    ] {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        let drafted = (1_u32..).zip(stats.drafted_at).zip(counts);
        for ((position, _), &count) in drafted.filter(|((_, n_drafted), _)| *n_drafted > 0) {
            let labels = [("position", position)];
            ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

impl fmt::Debug for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Figures")
    }
}

/// The counters of an embedding model at the moment of a request for metrics.
struct VectorFigures {
    embedder: Arc<Embedder>,
}

impl Collector for VectorFigures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let metrics = self.embedder.metrics();
        let waiting = ConstGauge::new(metrics.n_waiting as f64);
        let help = "Requests that are not answered yet";
        let kind = waiting.metric_type();
        waiting.encode(encoder.encode_descriptor("num_requests_waiting", help, None, kind)?)?;
        let seconds = ConstCounter::new(metrics.step_time.as_secs_f64());
        let (name, help) = ("embedding_step_seconds", "Time spent in steps of the model");
        let kind = seconds.metric_type();
        seconds.encode(encoder.encode_descriptor(name, help, None, kind)?)?;
        for (name, help, value) in [
            ("requests_finished", "Requests that were answered", metrics.n_finished),
            ("requests_aborted", "Requests whose client went away", metrics.n_aborted),
            ("embedding_texts", "Texts whose vectors were computed", metrics.n_texts),
            ("prompt_tokens", "Tokens of texts whose vectors were computed", metrics.n_tokens),
            ("embedding_steps", "Steps of the model", metrics.n_steps),
            ("embedding_panics", "Steps of the model that panicked", metrics.n_panics),
        ] {
            let counter = ConstCounter::new(value);
            let kind = counter.metric_type();
            counter.encode(encoder.encode_descriptor(name, help, None, kind)?)?;
        }
        Ok(())
    }
}

impl fmt::Debug for VectorFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VectorFigures")
    }
}

/// The word for the end of an answer, in metrics and in the log.
pub(crate) fn ending(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Aborted => "abort",
        _ => "error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_series_of_a_tenant_are_its_own_whatever_the_names_are() {
        let mut registry = Registry::default();
        let (ended, busy) = (Family::<OfTenant, Counter>::default(), Counter::<u64>::default());
        registry.register("ended", "Ended", ended.clone());
        registry.register("busy", "Busy", busy);
        let names = ["a", "ab", "\",tenant=\"a", "a\\", "\\", "tenant=a"];
        for name in names {
            ended.get_or_create(&OfTenant { tenant: name.to_owned() }).inc();
        }
        let mut text = String::new();
        text::encode(&mut text, &registry).expect("written");
        for name in names {
            let own = series_of(&text, name);
            let lines: Vec<&str> = own.lines().collect();
            let shown = name.replace('\\', r"\\").replace('"', "\\\"");
            let series = format!("ended_total{{tenant=\"{shown}\"}} 1");
            assert_eq!(lines, ["# HELP ended Ended.", "# TYPE ended counter", &series, "# EOF"]);
        }
        assert_eq!(series_of(&text, "b"), "# EOF\n");
    }
}
