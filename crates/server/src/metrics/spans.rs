//! Spans that were sent to a collector, and those that were lost.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;

use crate::otlp::Counts;

/// Reads the counts of the exporter.
#[derive(Debug)]
pub(super) struct Spans(pub(super) Arc<Counts>);

impl Collector for Spans {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for (name, help, count) in [
            ("spans_sent", "Spans that the collector took", &self.0.n_sent),
            ("spans_lost", "Spans that were not sent or not taken", &self.0.n_lost),
        ] {
            let counter = ConstCounter::new(count.load(Ordering::Relaxed));
            let kind = counter.metric_type();
            counter.encode(encoder.encode_descriptor(name, help, None, kind)?)?;
        }
        Ok(())
    }
}
