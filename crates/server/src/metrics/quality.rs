//! Control charts and signals for autoscalers, as gauges.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::live::control::{MEASURES, QUANTILES, Reading, Readings};
use crate::live::{Live, Signals};

/// Reads the charts of all models.
#[derive(Debug)]
pub(super) struct Quality(pub(super) Arc<Live>);

type Of<T> = fn(&T) -> f64;

const SIGNALS: [(&str, &str, Of<Signals>); 3] = [
    (
        "slo_headroom_ratio",
        "Distance of P95 from the nearest target as a share of it; below 0 where it is missed",
        |signals| signals.slo_headroom_ratio,
    ),
    ("demand_replicas", "Replicas that the load of this server needs, as a fraction", |signals| {
        signals.demand_replicas
    }),
    ("desired_replicas", "Replicas that the load of this server needs", |signals| {
        f64::from(signals.desired_replicas)
    }),
];

const LINES: [(&str, &str, Of<Reading>); 4] = [
    ("control_chart_value_seconds", "Last point of a control chart", |reading| reading.value),
    ("control_chart_centre_seconds", "Centre line of a control chart", |reading| reading.centre),
    ("control_chart_upper_seconds", "Upper limit of a control chart", |reading| reading.upper),
    ("control_chart_lower_seconds", "Lower limit of a control chart", |reading| reading.lower),
];

/// The charts of a model that have limits, with their labels.
fn charts(model: &str, readings: &Readings) -> Vec<([(&'static str, String); 3], Reading)> {
    let measures = MEASURES.into_iter().zip(readings.measures());
    let charts = measures.flat_map(|(measure, charts)| {
        QUANTILES
            .into_iter()
            .zip(charts.readings())
            .filter_map(move |(quantile, reading)| Some((measure, quantile, reading?)))
    });
    let labelled = charts.map(|(measure, quantile, reading)| {
        let labels = [
            ("model_name", model.to_owned()),
            ("measure", measure.to_owned()),
            ("quantile", quantile.to_owned()),
        ];
        (labels, reading)
    });
    labelled.collect()
}

impl Collector for Quality {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let quality = self.0.quality();
        if quality.is_empty() {
            return Ok(());
        }
        for (name, help, value) in SIGNALS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (model, _, signals) in &quality {
                let labels = [("model_name", model.as_str())];
                ConstGauge::new(value(signals)).encode(family.encode_family(&labels)?)?;
            }
        }
        let charts: Vec<_> =
            quality.iter().flat_map(|(model, readings, _)| charts(model, readings)).collect();
        for (name, help, value) in LINES {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (labels, reading) in &charts {
                ConstGauge::new(value(reading)).encode(family.encode_family(labels)?)?;
            }
        }
        let name = "control_chart_violation";
        let help = "Whether the last points break a rule of Western Electric, 1 to 4";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for ([model, measure, quantile], reading) in &charts {
            for (rule, is_broken) in (1..).zip(reading.violations) {
                let rule = ("rule", format!("{rule}"));
                let labels = [model.clone(), measure.clone(), quantile.clone(), rule];
                let value = ConstGauge::new(if is_broken { 1.0 } else { 0.0 });
                value.encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
