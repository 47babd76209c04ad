//! The engines' counters at the moment of a request for metrics.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use pelton_llm::{EngineMetrics, SpecStats};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::of_model;
use crate::models::{Catalog, Served};

/// Reads the engines of all loaded models.
#[derive(Debug)]
pub(super) struct Engines(pub(super) Arc<Catalog>);

/// The counters of one engine and their labels.
pub(super) type Counted<L> = (L, EngineMetrics);

/// The engines of a catalog, with labels of their models.
pub(super) fn counted<L>(
    models: &Catalog,
    labels: impl Fn(&crate::models::Model) -> L,
) -> Vec<Counted<L>> {
    let counted = models.loaded().into_iter().filter_map(|model| match model.served() {
        Served::Text(llm) => Some((labels(&model), llm.metrics())),
        Served::Vectors(_) => None,
    });
    counted.collect()
}

/// A series: its name, its description, and its value of an engine.
pub(super) type Series<T> = (&'static str, &'static str, fn(&EngineMetrics) -> T);

/// Share of the KV blocks that is in use.
pub(super) fn kv_usage(metrics: &EngineMetrics) -> f64 {
    let n_used = metrics.n_blocks.saturating_sub(metrics.n_free_blocks);
    n_used as f64 / metrics.n_blocks.max(1) as f64
}

/// Figures of this moment.
const GAUGES: &[Series<f64>] = &[
    ("num_requests_running", "Requests that hold KV blocks", |m| m.n_running as f64),
    ("num_requests_waiting", "Requests that wait for KV blocks", |m| m.n_waiting as f64),
    ("kv_cache_usage_ratio", "Share of the KV blocks that is in use", kv_usage),
    ("step_limit_tokens", "Most tokens of a step, as the controller sets it", |m| {
        m.limits.batch_tokens as f64
    }),
    ("step_limit_requests", "Most requests at once, as the controller sets it", |m| {
        m.limits.running as f64
    }),
    ("step_prediction_error_ratio", "Mean relative error of the predicted time of a step", |m| {
        m.cost_error_ppm as f64 * 1e-6
    }),
    (
        "spec_tokens_per_step",
        "Mean new tokens of a step of one sequence that verified drafts",
        |m| m.spec.tokens_per_step().unwrap_or(1.0),
    ),
    ("spec_saved_seconds", "Estimated time that drafting has saved", |m| {
        m.spec.saved_ns as f64 * 1e-9
    }),
];

/// Counts since the start.
const COUNTS: &[Series<u64>] = &[
    ("prompt_tokens", "Prompt tokens that were computed", |m| m.prompt_tokens),
    ("generation_tokens", "Tokens that were generated", |m| m.generated_tokens),
    ("num_preemptions", "Times that a request was preempted", |m| m.n_preemptions),
    ("requests_submitted", "Requests that the engine accepted", |m| m.n_submitted),
    ("requests_finished", "Requests that left the engine", |m| m.n_finished),
    ("evicted_blocks", "KV blocks that the prefix cache forgot", |m| m.n_evicted_blocks),
    ("swapped_out_blocks", "KV blocks copied to the host", |m| m.swapped_out_blocks),
    ("swapped_in_blocks", "KV blocks copied back from the host", |m| m.swapped_in_blocks),
    ("copied_blocks", "Shared KV blocks copied before a write", |m| m.copied_blocks),
    ("step_limits_shrunk", "Times that the controller lowered a limit", |m| m.n_shrunk),
    ("step_limits_grown", "Times that the controller raised a limit", |m| m.n_grown),
    ("spec_draft_tokens", "Tokens that were drafted", |m| m.spec.n_drafted),
    ("spec_accepted_tokens", "Drafted tokens that were accepted", |m| m.spec.n_accepted),
    ("spec_verified_rows", "Steps of single sequences that verified drafts", |m| {
        m.spec.n_verified_rows
    }),
    ("forced_tokens", "Tokens that the rule of a request forced", |m| m.spec.n_forced),
    ("spec_failures", "Failures of proposers", |m| m.spec.n_failures),
    ("scheduler_steps", "Steps of the engine", |m| m.n_steps),
    ("scheduler_failed_steps", "Steps that failed as a whole", |m| m.n_failed_steps),
    ("requests_panicked", "Requests ended by a panic of their own code", |m| m.n_panicked),
    ("engine_restarts", "Times that the engine started anew after a panic", |m| m.n_restarts),
];

/// Times since the start.
const TIMES: &[Series<Duration>] = &[
    ("scheduler_step_seconds", "Time spent in steps of the engine", |m| m.step_time),
    ("scheduler_plan_seconds", "Time of the scheduler in steps of the engine", |m| m.schedule_time),
    ("scheduler_execute_seconds", "Time of the model in steps of the engine", |m| m.execute_time),
    (
        "scheduler_mask_seconds",
        "Time in which steps of the engine waited for masks of grammars and schemas",
        |m| m.mask_time,
    ),
    ("spec_draft_seconds", "Time spent on drafting", |m| Duration::from_nanos(m.spec.draft_ns)),
];

impl Collector for Engines {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let counted = counted(&self.0, of_model);
        if counted.is_empty() {
            return Ok(());
        }
        gauges(&mut encoder, GAUGES, &counted)?;
        counts(&mut encoder, COUNTS, &counted)?;
        for (name, help, time) in TIMES {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (labels, metrics) in &counted {
                let seconds = ConstCounter::new(time(metrics).as_secs_f64());
                seconds.encode(family.encode_family(labels)?)?;
            }
        }
        let (name, help) = ("inter_token_latency_seconds", "Time from a token to the next one");
        latencies(&mut encoder, name, help, None, &counted)?;
        step_tokens(&mut encoder, "step_tokens", &counted)?;
        places(&mut encoder, &counted)
    }
}

/// Gauges of several engines.
pub(super) fn gauges<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    series: &[Series<f64>],
    counted: &[Counted<L>],
) -> Result<(), fmt::Error> {
    for (name, help, value) in series {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, metrics) in counted {
            ConstGauge::new(value(metrics)).encode(family.encode_family(labels)?)?;
        }
    }
    Ok(())
}

/// Counters of several engines.
pub(super) fn counts<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    series: &[Series<u64>],
    counted: &[Counted<L>],
) -> Result<(), fmt::Error> {
    for (name, help, value) in series {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, metrics) in counted {
            ConstCounter::new(value(metrics)).encode(family.encode_family(labels)?)?;
        }
    }
    Ok(())
}

/// Times between two tokens, as steps end; with the engine's own bounds or with some of them.
pub(super) fn latencies<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    bounds: Option<&[f64]>,
    counted: &[Counted<L>],
) -> Result<(), fmt::Error> {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
    for (labels, metrics) in counted {
        let histogram = &metrics.latencies.tpot;
        let is_asked =
            |bound: f64| bound.is_infinite() || bounds.is_none_or(|bounds| bounds.contains(&bound));
        let mut before = 0;
        let buckets: Vec<(f64, u64)> = histogram
            .cumulative()
            .filter(|(bound, _)| is_asked(*bound))
            .map(|(bound, n)| (bound, n - std::mem::replace(&mut before, n)))
            .collect();
        let (sum, n) = (histogram.sum().as_secs_f64(), histogram.count());
        family.encode_family(labels)?.encode_histogram::<NoLabelSet>(sum, n, &buckets, None)?;
    }
    Ok(())
}

/// Tokens of each step.
pub(super) fn step_tokens<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    counted: &[Counted<L>],
) -> Result<(), fmt::Error> {
    let help = "Tokens of a step of the engine";
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
    for (labels, metrics) in counted {
        let tokens = &metrics.step_tokens;
        let buckets: Vec<(f64, u64)> = tokens.buckets().collect();
        let (sum, n) = (tokens.sum() as f64, tokens.count());
        family.encode_family(labels)?.encode_histogram::<NoLabelSet>(sum, n, &buckets, None)?;
    }
    Ok(())
}

/// Drafts by position: the first draft of a step is at position 1. Positions without drafts are left
/// out.
fn places(
    encoder: &mut DescriptorEncoder<'_>,
    counted: &[Counted<[(&'static str, String); 1]>],
) -> Result<(), fmt::Error> {
    type Places = fn(&SpecStats) -> &[u64];
    let series: [(_, _, Places); 2] = [
        ("spec_position_draft_tokens", "Drafted tokens, by position", |s| &s.drafted_at),
        ("spec_position_accepted_tokens", "Accepted drafted tokens, by position", |s| {
            &s.accepted_at
        }),
    ];
    for (name, help, counts) in series {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for ([(key, model)], metrics) in counted {
            let stats = &metrics.spec;
            let drafted = (1_u32..).zip(stats.drafted_at).zip(counts(stats));
            for ((position, _), &count) in drafted.filter(|((_, n_drafted), _)| *n_drafted > 0) {
                let labels = [(*key, model.clone()), ("position", position.to_string())];
                ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
            }
        }
    }
    Ok(())
}
