//! vLLM's series: names, labels and buckets are its, so that dashboards, autoscalers and routers made
//! for vLLM read this server.
//!
//! Each model has the labels `model_name` and `engine`, which is always 0. Inter-token latency is
//! measured where steps of the engine end, not where a connection takes a chunk. Left out are
//! series of parts that this server does not have: LoRA adapters (`lora_requests_info`), images, KV
//! connectors, data-parallel engines, and the ages of KV blocks.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;

use super::buckets::{ANSWERS, REQUEST_SECONDS, TPOT_SECONDS, TTFT_SECONDS, one_two_five};
use super::engines::{Counted, Series, counted, counts, gauges, kv_usage, latencies, step_tokens};
use super::{ENDINGS, ending, endings};
use crate::models::{Catalog, Model};
use crate::outcome::Outcome;

/// vLLM's series of one server.
#[derive(Debug)]
pub(super) struct Vllm {
    models: Arc<Catalog>,
    /// By model, also of models that are no longer loaded.
    requests: Mutex<BTreeMap<String, Arc<Requests>>>,
}

/// Labels of a model.
type Labels = [(&'static str, String); 2];

fn labels(model: &str) -> Labels {
    [("model_name", model.to_owned()), ("engine", "0".to_owned())]
}

const GAUGES: &[Series<f64>] = &[
    ("vllm:num_requests_running", "Requests that hold KV blocks", |m| m.n_running as f64),
    ("vllm:num_requests_waiting", "Requests that wait for KV blocks", |m| m.n_waiting as f64),
    ("vllm:kv_cache_usage_perc", "Share of the KV blocks that is in use, 0 to 1", kv_usage),
    ("vllm:gpu_cache_usage_perc", "Old name of vllm:kv_cache_usage_perc", kv_usage),
];

const COUNTS: &[Series<u64>] = &[
    ("vllm:prompt_tokens", "Prompt tokens, computed or found in the cache", |m| {
        m.prompt_tokens + m.cached_prompt_tokens
    }),
    ("vllm:generation_tokens", "Tokens that were generated", |m| m.generated_tokens),
    ("vllm:num_preemptions", "Times that a request was preempted", |m| m.n_preemptions),
    ("vllm:spec_decode_num_drafts", "Drafts that were verified", |m| m.spec.n_verified_rows),
    ("vllm:spec_decode_num_draft_tokens", "Tokens that were drafted", |m| m.spec.n_drafted),
    ("vllm:spec_decode_num_accepted_tokens", "Drafted tokens that were accepted", |m| {
        m.spec.n_accepted
    }),
];

/// The requests of one model.
#[derive(Debug)]
struct Requests {
    histograms: [Histogram; HISTOGRAMS.len()],
    /// By [`ENDINGS`].
    ended: [Counter; ENDINGS.len()],
    cache_queries: Counter,
    cache_hits: Counter,
}

/// A histogram of requests: name, description, bounds for a model of this context, and value.
struct OfRequests {
    name: &'static str,
    help: &'static str,
    bounds: fn(usize) -> Vec<f64>,
    value: fn(&Outcome<'_>) -> Option<f64>,
}

const HISTOGRAMS: &[OfRequests; 12] = &[
    OfRequests {
        name: "vllm:time_to_first_token_seconds",
        help: "Time from a request to its first token",
        bounds: |_| TTFT_SECONDS.to_vec(),
        value: |outcome| outcome.parts().ttft,
    },
    OfRequests {
        name: "vllm:request_time_per_output_token_seconds",
        help: "Mean time between two tokens of an answer",
        bounds: |_| TPOT_SECONDS.to_vec(),
        value: |outcome| outcome.parts().tpot,
    },
    OfRequests {
        name: "vllm:e2e_request_latency_seconds",
        help: "Time from a request to the last token of its last answer",
        bounds: |_| REQUEST_SECONDS.to_vec(),
        value: |outcome| Some(outcome.parts().whole),
    },
    OfRequests {
        name: "vllm:request_queue_time_seconds",
        help: "Time of a request before its first step",
        bounds: |_| REQUEST_SECONDS.to_vec(),
        value: |outcome| outcome.parts().queue,
    },
    OfRequests {
        name: "vllm:request_prefill_time_seconds",
        help: "Time from the first step to the first token",
        bounds: |_| REQUEST_SECONDS.to_vec(),
        value: |outcome| outcome.parts().prefill,
    },
    OfRequests {
        name: "vllm:request_decode_time_seconds",
        help: "Time from the first token to the last token",
        bounds: |_| REQUEST_SECONDS.to_vec(),
        value: |outcome| outcome.parts().decode,
    },
    OfRequests {
        name: "vllm:request_inference_time_seconds",
        help: "Time from the first step to the last token",
        bounds: |_| REQUEST_SECONDS.to_vec(),
        value: |outcome| outcome.parts().inference,
    },
    OfRequests {
        name: "vllm:request_prompt_tokens",
        help: "Tokens of the prompts of a request",
        bounds: |context| one_two_five(context).collect(),
        value: |outcome| Some(outcome.usage.prompt_tokens as f64),
    },
    OfRequests {
        name: "vllm:request_generation_tokens",
        help: "Tokens of the answers to a request",
        bounds: |context| one_two_five(context).collect(),
        value: |outcome| Some(outcome.usage.completion_tokens as f64),
    },
    OfRequests {
        name: "vllm:request_max_num_generation_tokens",
        help: "Tokens of the longest answer to a request",
        bounds: |context| one_two_five(context).collect(),
        value: |outcome| Some(outcome.asked.longest_tokens as f64),
    },
    OfRequests {
        name: "vllm:request_params_n",
        help: "Answers that a request asked for",
        bounds: |_| ANSWERS.to_vec(),
        value: |outcome| Some(outcome.n_choices as f64),
    },
    OfRequests {
        name: "vllm:request_params_max_tokens",
        help: "Most tokens of an answer, where a request said so",
        bounds: |context| one_two_five(context).collect(),
        value: |outcome| outcome.asked.max_tokens.map(|n| n as f64),
    },
];

impl Requests {
    fn new(context_tokens: usize) -> Self {
        Self {
            histograms: std::array::from_fn(|i| {
                Histogram::new((HISTOGRAMS[i].bounds)(context_tokens))
            }),
            ended: std::array::from_fn(|_| Counter::default()),
            cache_queries: Counter::default(),
            cache_hits: Counter::default(),
        }
    }
}

impl Vllm {
    pub(super) fn new(models: Arc<Catalog>) -> Self {
        Self { models, requests: Mutex::default() }
    }

    /// A request has ended.
    pub(super) fn ended(&self, outcome: &Outcome<'_>) {
        let requests = self.requests(outcome.model);
        for reason in endings(outcome) {
            let place = ENDINGS.iter().position(|word| *word == ending(reason));
            requests.ended[place.unwrap_or(ENDINGS.len() - 1)].inc();
        }
        if !outcome.is_whole() {
            return;
        }
        for (of, histogram) in HISTOGRAMS.iter().zip(&requests.histograms) {
            if let Some(value) = (of.value)(outcome) {
                histogram.observe(value);
            }
        }
        requests.cache_queries.inc_by(outcome.usage.prompt_tokens as u64);
        requests.cache_hits.inc_by(outcome.usage.cached_tokens as u64);
    }

    fn requests(&self, model: &Model) -> Arc<Requests> {
        let mut all = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(requests) = all.get(model.name()) {
            return Arc::clone(requests);
        }
        let new = Arc::new(Requests::new(model.max_tokens()));
        all.insert(model.name().to_owned(), Arc::clone(&new));
        new
    }

    /// Every model that generates text or has done so, the loaded ones with zeros from the start.
    fn all_requests(&self) -> Vec<(Labels, Arc<Requests>)> {
        for model in self.models.loaded().iter().filter(|model| model.llm().is_ok()) {
            self.requests(model);
        }
        let all = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|(name, requests)| (labels(name), Arc::clone(requests))).collect()
    }
}

impl Collector for Vllm {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let counted = counted(&self.models, |model| labels(model.name()));
        let requests = self.all_requests();
        if !counted.is_empty() {
            gauges(&mut encoder, GAUGES, &counted)?;
            counts(&mut encoder, COUNTS, &counted)?;
            for name in ["vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"] {
                let help = "Time from a token to the next one";
                latencies(&mut encoder, name, help, Some(&TPOT_SECONDS), &counted)?;
            }
            step_tokens(&mut encoder, "vllm:iteration_tokens_total", &counted)?;
            places(&mut encoder, &counted)?;
            self.cache_config(&mut encoder)?;
        }
        if requests.is_empty() { Ok(()) } else { encode_requests(&mut encoder, &requests) }
    }
}

fn encode_requests(
    encoder: &mut DescriptorEncoder<'_>,
    requests: &[(Labels, Arc<Requests>)],
) -> Result<(), fmt::Error> {
    for (i, of) in HISTOGRAMS.iter().enumerate() {
        let mut family =
            encoder.encode_descriptor(of.name, of.help, None, MetricType::Histogram)?;
        for (labels, requests) in requests {
            requests.histograms[i].encode(family.encode_family(labels)?)?;
        }
    }
    type Count = fn(&Requests) -> &Counter;
    let series: [(_, _, Count); 2] = [
        ("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache", |r| {
            &r.cache_queries
        }),
        ("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache", |r| &r.cache_hits),
    ];
    for (name, help, count) in series {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, requests) in requests {
            count(requests).encode(family.encode_family(labels)?)?;
        }
    }
    let (name, help) = ("vllm:request_success", "Answers that ended, by reason");
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for ([model, engine], requests) in requests {
        for (reason, count) in ENDINGS.into_iter().zip(&requests.ended) {
            let reason = ("finished_reason", reason.to_owned());
            count.encode(family.encode_family(&[model.clone(), engine.clone(), reason])?)?;
        }
    }
    Ok(())
}

/// Accepted drafts by position, from 0; as far as there were drafts.
fn places(
    encoder: &mut DescriptorEncoder<'_>,
    counted: &[Counted<Labels>],
) -> Result<(), fmt::Error> {
    let name = "vllm:spec_decode_num_accepted_tokens_per_pos";
    let help = "Accepted drafted tokens, by position from 0";
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for ([model, engine], metrics) in counted {
        let (drafted, accepted) = (metrics.spec.drafted_at, metrics.spec.accepted_at);
        let used = drafted.iter().zip(accepted).take_while(|(n_drafted, _)| **n_drafted > 0);
        for (position, (_, n_accepted)) in used.enumerate() {
            let position = ("position", position.to_string());
            let labels = [model.clone(), engine.clone(), position];
            ConstCounter::new(n_accepted).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

impl Vllm {
    /// Facts about the KV memory, as labels of a gauge that is 1. Blocks of the GPU in vLLM's
    /// words are the blocks in which requests run.
    fn cache_config(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let (name, help) = ("vllm:cache_config_info", "Facts about the KV memory");
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for model in self.models.loaded() {
            let Ok(llm) = model.llm() else { continue };
            let metrics = llm.metrics();
            let [name, engine] = labels(model.name());
            let labels = [
                name,
                engine,
                ("block_size", metrics.block_tokens.to_string()),
                ("num_gpu_blocks", metrics.n_blocks.to_string()),
                ("num_cpu_blocks", metrics.n_host_blocks.to_string()),
            ];
            ConstGauge::new(1.0).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
