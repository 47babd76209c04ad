//! The counts of the rules that choose models.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

use crate::models::{Catalog, Chosen};

/// Reads the rules of a catalog.
#[derive(Debug)]
pub(super) struct Rules(pub(super) Arc<Catalog>);

impl Collector for Rules {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let moved = self.0.moved();
        if moved.is_empty() {
            return Ok(());
        }
        let help = "Requests whose model a rule chose, since the rules are in force";
        let mut family =
            encoder.encode_descriptor("routed_requests", help, None, MetricType::Counter)?;
        for (chosen, n) in moved {
            let Chosen { from, to, rule } = chosen;
            let labels = [("rule", rule), ("from", from), ("model", to)];
            ConstCounter::new(n).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
