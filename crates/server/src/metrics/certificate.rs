//! The end of the server's certificate.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;

use crate::tls::Certificates;

/// Reads the dates of the current certificate.
#[derive(Debug)]
pub(super) struct Certificate(pub(super) Arc<Certificates>);

impl Collector for Certificate {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let gauge = ConstGauge::new(self.0.not_after() as f64);
        let help = "End of the certificate, in seconds since 1970";
        let name = "tls_certificate_expiry_seconds";
        gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
    }
}
