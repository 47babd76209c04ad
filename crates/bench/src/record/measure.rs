//! One figure of a report, with the sample of each round.

use serde::{Deserialize, Serialize};

use crate::estimate::{Estimate, estimate, median};

/// The direction in which a figure improves.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// A rate.
    Higher,
    /// A time, a count of bytes.
    Lower,
}

/// One figure.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Measure {
    /// Its name, unique within a report.
    pub name: String,
    /// Its unit, such as `tokens/s`, `s` or `bytes`.
    pub unit: String,
    /// The direction in which it improves.
    pub better: Better,
    /// A value per round, or per block of requests in order of arrival.
    pub samples: Vec<f64>,
}

impl Measure {
    /// A figure of which more is better.
    pub fn rate(name: impl Into<String>, unit: &str, samples: Vec<f64>) -> Self {
        Self { name: name.into(), unit: unit.to_owned(), better: Better::Higher, samples }
    }

    /// A figure of which less is better.
    pub fn cost(name: impl Into<String>, unit: &str, samples: Vec<f64>) -> Self {
        Self { name: name.into(), unit: unit.to_owned(), better: Better::Lower, samples }
    }

    /// The median of the samples with its interval; `None` without samples.
    pub fn median(&self) -> Option<Estimate> {
        let rounds: Vec<Vec<f64>> = self.samples.iter().map(|&sample| vec![sample]).collect();
        estimate(&rounds, |values| median(values).unwrap_or(f64::NAN))
    }
}

impl Serialize for Measure {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Written<'a> {
            name: &'a str,
            unit: &'a str,
            better: Better,
            median: Option<f64>,
            /// The interval of the median.
            low: Option<f64>,
            high: Option<f64>,
            samples: &'a [f64],
        }
        let Self { name, unit, better, samples } = self;
        let told = self.median();
        let interval = told.and_then(|told| told.interval);
        let written = Written {
            name,
            unit,
            better: *better,
            median: told.map(|told| told.value),
            low: interval.map(|interval| interval.low),
            high: interval.map(|interval| interval.high),
            samples,
        };
        written.serialize(serializer)
    }
}
