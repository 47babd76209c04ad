//! The parts of `GET /v1/live` that are shown. Fields that are absent, as those that only operators
//! see, are zero or none; fields that this version does not know are left out.

use serde::Deserialize;

/// The server at one moment.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct View {
    pub(super) status: String,
    pub(super) version: String,
    /// `all` or `tenant`.
    pub(super) view: String,
    pub(super) uptime_seconds: f64,
    pub(super) window_seconds: u64,
    pub(super) total: Traffic,
    pub(super) models: Vec<Named>,
    pub(super) tenants: Vec<Named>,
}

/// Traffic of a model or of a tenant.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Named {
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) traffic: Traffic,
    pub(super) engine: Option<Engine>,
    pub(super) control: Control,
    pub(super) scale: Option<Scale>,
}

/// Requests and their times.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Traffic {
    pub(super) running: u64,
    pub(super) waiting: u64,
    pub(super) requests_per_second: f64,
    pub(super) prompt_tokens_per_second: f64,
    pub(super) generated_tokens_per_second: f64,
    pub(super) cache_hit_ratio: Option<f64>,
    pub(super) ended: Ended,
    pub(super) queue_seconds: Option<Quantiles>,
    pub(super) ttft_seconds: Option<Quantiles>,
    pub(super) tpot_seconds: Option<Quantiles>,
    pub(super) e2e_seconds: Option<Quantiles>,
    pub(super) history: History,
}

/// Answers since the start.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Ended {
    pub(super) stop: u64,
    pub(super) length: u64,
    pub(super) abort: u64,
    pub(super) error: u64,
}

/// A count for each second, the oldest first.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct History {
    pub(super) prompt_tokens: Vec<u64>,
    pub(super) generated_tokens: Vec<u64>,
}

/// Quantiles of a time in seconds.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Quantiles {
    pub(super) n: u64,
    pub(super) p50: f64,
    pub(super) p95: f64,
    pub(super) p99: f64,
}

/// The engine of a model.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Engine {
    pub(super) running: u64,
    pub(super) waiting: u64,
    pub(super) busy_ratio: f64,
    pub(super) steps_per_second: f64,
    pub(super) kv: Kv,
    pub(super) step: Step,
    pub(super) inter_token_seconds: Option<Quantiles>,
    pub(super) drafts: Drafts,
    pub(super) preemptions: u64,
    pub(super) restarts: u64,
}

/// Control charts by the name of the time.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Control {
    pub(super) ttft: Measure,
    pub(super) tpot: Measure,
    pub(super) e2e: Measure,
}

/// Charts of one time.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Measure {
    pub(super) p50: Option<Reading>,
    pub(super) p95: Option<Reading>,
    pub(super) p99: Option<Reading>,
}

/// One chart.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Reading {
    pub(super) value: f64,
    pub(super) centre: f64,
    pub(super) violations: Vec<bool>,
}

/// Signals for autoscalers.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Scale {
    pub(super) slo_headroom_ratio: f64,
    pub(super) desired_replicas: u64,
}

/// Memory for keys and values.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Kv {
    pub(super) blocks: u64,
    pub(super) usage_ratio: f64,
}

/// Steps of an engine.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Step {
    pub(super) seconds: Option<Quantiles>,
    pub(super) limit_tokens: u64,
    pub(super) limit_requests: u64,
}

/// Speculative decoding.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Drafts {
    pub(super) drafted_tokens: u64,
    pub(super) acceptance_ratio: Option<f64>,
    pub(super) tokens_per_step: Option<f64>,
}
