//! Techniques of a server, alone and on top of each other.
//!
//! ```text
//! plain           one request at a time, nothing cached, nothing drafted
//! alone           plain + A     plain + B     plain + C
//! stacked         plain + A     + B           + C               gains do not multiply
//! ```
//!
//! The caller serves the workload with each variant once per round, so ratios are formed within a
//! round. `plain + A` is one measurement, which both lists show.

use serde::Serialize;

use crate::record::{Measure, Reads, Reported};
use crate::samples::Summary;
use crate::table::{Align, INTERRUPTED, table};

/// One round of one variant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Round {
    /// Tokens of answers per second.
    pub tokens_per_s: f64,
    /// Median time to the first token, in milliseconds.
    pub ttft_ms: f64,
    /// Median time to the last token, in milliseconds.
    pub end_to_end_ms: f64,
}

/// A variant and its rounds.
#[derive(Clone, Debug)]
pub struct Variant {
    /// Its last technique, or `plain`.
    pub name: String,
    /// Its rounds.
    pub rounds: Vec<Round>,
}

#[derive(Clone, Debug, Serialize)]
struct Figure {
    name: String,
    tokens_per_s: Summary,
    /// Tokens per second over those of the plain server, round by round.
    to_plain: Summary,
    /// The same over the variant before; of the list of stacked ones alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    to_last: Option<Summary>,
    ttft_ms: Summary,
    end_to_end_ms: Summary,
}

/// Everything that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    model: String,
    workload: String,
    /// Whether the caller ended it early.
    pub interrupted: bool,
    /// Each technique on top of the plain server.
    alone: Vec<Figure>,
    /// The plain server, and each technique on top of all before.
    stacked: Vec<Figure>,
}

impl Figure {
    /// `None` before the first round has ended.
    fn new(variant: &Variant, plain: &Variant, last: Option<&Variant>) -> Option<Self> {
        let of =
            |value: fn(&Round) -> f64| Summary::new(variant.rounds.iter().map(value).collect());
        let ratio = |other: &Variant| {
            let pairs = variant.rounds.iter().zip(&other.rounds);
            Summary::new(pairs.map(|(own, base)| own.tokens_per_s / base.tokens_per_s).collect())
        };
        Some(Self {
            name: variant.name.clone(),
            tokens_per_s: of(|round| round.tokens_per_s)?,
            to_plain: ratio(plain)?,
            to_last: last.and_then(ratio),
            ttft_ms: of(|round| round.ttft_ms)?,
            end_to_end_ms: of(|round| round.end_to_end_ms)?,
        })
    }

    fn row(&self) -> [String; 6] {
        let ratio = |x: &Summary| format!("{:.2} ({:.2}..{:.2})", x.median, x.lowest, x.highest);
        [
            self.name.clone(),
            format!("{:.1}", self.tokens_per_s.median),
            ratio(&self.to_plain),
            self.to_last.as_ref().map_or_else(|| "-".to_owned(), ratio),
            format!("{:.0}", self.ttft_ms.median),
            format!("{:.0}", self.end_to_end_ms.median),
        ]
    }
}

impl Report {
    /// Sums up; `stacked` begins with the plain server, and `alone` is in the order of the rest.
    pub fn new(model: String, workload: String, alone: &[Variant], stacked: &[Variant]) -> Self {
        let (mut alone_figures, mut stacked_figures) = (Vec::new(), Vec::new());
        if let Some(plain) = stacked.first() {
            alone_figures.extend(alone.iter().filter_map(|own| Figure::new(own, plain, None)));
            let last = std::iter::once(None).chain(stacked.iter().map(Some));
            let pairs = stacked.iter().zip(last);
            stacked_figures.extend(pairs.filter_map(|(own, last)| Figure::new(own, plain, last)));
        }
        Self { model, workload, interrupted: false, alone: alone_figures, stacked: stacked_figures }
    }

    /// Both lists as tables.
    pub fn render(&self) -> String {
        let head = |name| {
            [
                (name, Align::Left),
                ("tokens/s", Align::Right),
                ("to plain", Align::Right),
                ("to the one before", Align::Right),
                ("TTFT P50 ms", Align::Right),
                ("e2e P50 ms", Align::Right),
            ]
        };
        let rows = |figures: &[Figure]| figures.iter().map(Figure::row).collect::<Vec<_>>();
        let note = if self.interrupted { INTERRUPTED } else { "" };
        format!(
            "{} · {}\n\n{}\n{}{note}",
            self.model,
            self.workload,
            table(head("alone"), &rows(&self.alone)),
            table(head("stacked"), &rows(&self.stacked)),
        )
    }
}

impl Reported for Report {
    const KIND: &'static str = "ablate";

    fn measures(&self) -> Vec<Measure> {
        let of = |how: &'static str, figures: &[Figure]| {
            let rate = |figure: &Figure| {
                let name = format!("{how} {}", figure.name);
                Measure::rate(name, "tokens/s", figure.tokens_per_s.rounds.clone())
            };
            figures.iter().map(rate).collect::<Vec<_>>()
        };
        [of("alone", &self.alone), of("stacked", &self.stacked)].concat()
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted
    }

    fn threads(&self) -> Option<usize> {
        None
    }

    fn reads(&self) -> Option<Reads> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variant(name: &str, rates: &[f64]) -> Variant {
        let round = |&tokens_per_s: &f64| Round { tokens_per_s, ttft_ms: 5.0, end_to_end_ms: 50.0 };
        Variant { name: name.to_owned(), rounds: rates.iter().map(round).collect() }
    }

    #[test]
    fn ratios_are_formed_within_a_round_and_gains_need_not_multiply() {
        // The second round is twice as slow for all.
        let (plain, a) = (variant("plain", &[10.0, 5.0]), variant("a", &[30.0, 15.0]));
        let b = variant("b", &[20.0, 10.0]);
        let both = variant("b", &[33.0, 16.5]);
        let stacked = [plain, a.clone(), both];
        let report = Report::new("m".to_owned(), "w".to_owned(), &[a, b], &stacked);
        let ratios =
            |figures: &[Figure]| figures.iter().map(|f| f.to_plain.median).collect::<Vec<_>>();
        assert_eq!(ratios(&report.alone), [3.0, 2.0]);
        assert_eq!(ratios(&report.stacked), [1.0, 3.0, 3.3]);
        let last: Vec<Option<f64>> =
            report.stacked.iter().map(|f| f.to_last.as_ref().map(|x| x.median)).collect();
        assert_eq!(last[..2], [None, Some(3.0)]);
        assert!(last[2].is_some_and(|x| (x - 1.1).abs() < 1e-9));
        let text = report.render();
        assert!(text.contains("3.00 (3.00..3.00)") && text.contains("1.10 (1.10..1.10)"), "{text}");
        let names: Vec<String> = report.measures().into_iter().map(|m| m.name).collect();
        assert_eq!(names, ["alone a", "alone b", "stacked plain", "stacked a", "stacked b"]);
    }

    #[test]
    fn variants_without_a_round_are_left_out() {
        let stacked = [variant("plain", &[1.0]), variant("a", &[])];
        let report = Report::new("m".to_owned(), "w".to_owned(), &[variant("a", &[])], &stacked);
        assert_eq!((report.alone.len(), report.stacked.len()), (0, 1));
        let none = Report::new("m".to_owned(), "w".to_owned(), &[], &[]);
        assert!(none.render().contains("stacked"));
    }
}
