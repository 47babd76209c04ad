//! The counters of embedding models at the moment of a request for metrics.

use std::fmt;
use std::sync::Arc;

use pelton_llm::EmbedMetrics;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::of_model;
use crate::models::{Catalog, Served};

/// Reads the embedding models that are loaded.
#[derive(Debug)]
pub(super) struct Embedders(pub(super) Arc<Catalog>);

/// A series: its name, its description, and its value.
type Series = (&'static str, &'static str, fn(&EmbedMetrics) -> u64);

/// Counts since the start.
const COUNTS: &[Series] = &[
    ("embedding_requests_finished", "Requests for vectors that were answered", |m| m.n_finished),
    ("embedding_requests_aborted", "Requests for vectors whose client went away", |m| m.n_aborted),
    ("embedding_texts", "Texts whose vectors were computed", |m| m.n_texts),
    ("embedding_tokens", "Tokens of texts whose vectors were computed", |m| m.n_tokens),
    ("embedding_steps", "Steps of an embedding model", |m| m.n_steps),
    ("embedding_panics", "Steps of an embedding model that panicked", |m| m.n_panics),
];

impl Collector for Embedders {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let models = self.0.loaded();
        let counted = models.iter().filter_map(|model| match model.served() {
            Served::Vectors(embedder) => Some((of_model(model), embedder.metrics())),
            Served::Text(_) => None,
        });
        let counted: Vec<_> = counted.collect();
        if counted.is_empty() {
            return Ok(());
        }
        let (name, help) = ("embedding_requests_waiting", "Requests for vectors without an answer");
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, metrics) in &counted {
            let waiting = ConstGauge::new(metrics.n_waiting as f64);
            waiting.encode(family.encode_family(labels)?)?;
        }
        let (name, help) = ("embedding_step_seconds", "Time spent in steps of embedding models");
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, metrics) in &counted {
            let seconds = ConstCounter::new(metrics.step_time.as_secs_f64());
            seconds.encode(family.encode_family(labels)?)?;
        }
        for (name, help, value) in COUNTS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (labels, metrics) in &counted {
                ConstCounter::new(value(metrics)).encode(family.encode_family(labels)?)?;
            }
        }
        Ok(())
    }
}
