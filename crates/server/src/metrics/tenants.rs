//! Counters of each tenant: times of answers, how they ended, cached tokens, refusals.

use pelton_base::TenantId;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::buckets::{FINE_REQUEST_SECONDS, FINE_TPOT_SECONDS, TTFT_SECONDS};
use super::{ending, endings};
use crate::outcome::Outcome;

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct OfTenant {
    tenant: String,
    model_name: String,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct OfEnding {
    tenant: String,
    model_name: String,
    finished_reason: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct OfRefusal {
    tenant: String,
    reason: &'static str,
}

type Times = Family<OfTenant, Histogram, fn() -> Histogram>;

/// Counters by tenant.
#[derive(Debug)]
pub(super) struct Tenants {
    names: Vec<String>,
    times: [Times; Part::ALL.len()],
    ended: Family<OfEnding, Counter>,
    refused: Family<OfRefusal, Counter>,
    cache_queries: Family<OfTenant, Counter>,
    cache_hits: Family<OfTenant, Counter>,
}

/// A time of a request.
#[derive(Clone, Copy, Debug)]
enum Part {
    Ttft,
    Tpot,
    Whole,
    Queue,
    Prefill,
    Decode,
    Inference,
}

impl Part {
    const ALL: [Self; 7] = [
        Self::Ttft,
        Self::Tpot,
        Self::Whole,
        Self::Queue,
        Self::Prefill,
        Self::Decode,
        Self::Inference,
    ];

    /// Its name and its description.
    fn series(self) -> (&'static str, &'static str) {
        match self {
            Self::Ttft => ("time_to_first_token_seconds", "Time from a request to its first token"),
            Self::Tpot => {
                ("time_per_output_token_seconds", "Mean time between two tokens of an answer")
            }
            Self::Whole => (
                "e2e_request_latency_seconds",
                "Time from a request to the last token of its last answer",
            ),
            Self::Queue => {
                ("request_queue_time_seconds", "Time of a request before its first step")
            }
            Self::Prefill => {
                ("request_prefill_time_seconds", "Time from the first step to the first token")
            }
            Self::Decode => {
                ("request_decode_time_seconds", "Time from the first token to the last token")
            }
            Self::Inference => {
                ("request_inference_time_seconds", "Time from the first step to the last token")
            }
        }
    }

    fn histogram(self) -> fn() -> Histogram {
        match self {
            Self::Ttft => || Histogram::new(TTFT_SECONDS),
            Self::Tpot => || Histogram::new(FINE_TPOT_SECONDS),
            _ => || Histogram::new(FINE_REQUEST_SECONDS),
        }
    }

    /// The time itself; `None` where the request had no such part.
    fn of(self, outcome: &Outcome<'_>) -> Option<f64> {
        let parts = outcome.parts();
        match self {
            Self::Ttft => parts.ttft,
            Self::Tpot => parts.tpot,
            Self::Whole => Some(parts.whole),
            Self::Queue => parts.queue,
            Self::Prefill => parts.prefill,
            Self::Decode => parts.decode,
            Self::Inference => parts.inference,
        }
    }
}

impl Tenants {
    /// Counters for tenants of these names, by number.
    pub(super) fn new(names: Vec<String>, registry: &mut Registry) -> Self {
        let tenants = Self {
            names,
            times: Part::ALL.map(|part| Times::new_with_constructor(part.histogram())),
            ended: Family::default(),
            refused: Family::default(),
            cache_queries: Family::default(),
            cache_hits: Family::default(),
        };
        for (part, times) in Part::ALL.into_iter().zip(&tenants.times) {
            let (name, help) = part.series();
            registry.register(name, help, times.clone());
        }
        let help = "Answers that ended, by reason";
        registry.register("request_success", help, tenants.ended.clone());
        let help = "Requests that were refused, by reason";
        registry.register("requests_refused", help, tenants.refused.clone());
        let help = "Prompt tokens that were looked up in the prefix cache";
        registry.register("prefix_cache_queries", help, tenants.cache_queries.clone());
        let help = "Prompt tokens that were found in the prefix cache";
        registry.register("prefix_cache_hits", help, tenants.cache_hits.clone());
        tenants
    }

    /// The name of a tenant.
    pub(super) fn name(&self, tenant: TenantId) -> &str {
        self.names.get(tenant.0 as usize).map_or("unknown", String::as_str)
    }

    /// A request has ended.
    pub(super) fn ended(&self, outcome: &Outcome<'_>) {
        let tenant = self.name(outcome.caller.tenant).to_owned();
        let labels = OfTenant { tenant, model_name: outcome.model.name().to_owned() };
        for reason in endings(outcome) {
            let OfTenant { tenant, model_name } = labels.clone();
            let finished_reason = ending(reason);
            let labels = OfEnding { tenant, model_name, finished_reason };
            self.ended.get_or_create(&labels).inc();
        }
        if !outcome.is_whole() {
            return;
        }
        for (part, times) in Part::ALL.into_iter().zip(&self.times) {
            if let Some(seconds) = part.of(outcome) {
                times.get_or_create(&labels).observe(seconds);
            }
        }
        let usage = outcome.usage;
        self.cache_queries.get_or_create(&labels).inc_by(usage.prompt_tokens as u64);
        self.cache_hits.get_or_create(&labels).inc_by(usage.cached_tokens as u64);
    }

    /// A request was refused.
    pub(super) fn refused(&self, tenant: TenantId, reason: &'static str) {
        let labels = OfRefusal { tenant: self.name(tenant).to_owned(), reason };
        self.refused.get_or_create(&labels).inc();
    }
}
