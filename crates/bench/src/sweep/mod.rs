//! A workload at several loads against a server: the curve of latency over throughput, the knee of
//! the curve, and the cause.
//!
//! ```text
//! latency │                        x          the knee is the point with the most *power*,
//!         │                      x            throughput / mean time of an answer
//!         │            x    KNEE
//!         │ x     x                           (Kleinrock, "Power and deterministic rules of thumb
//!         └───────────────────────────▶        for probabilistic problems", ICC 1979)
//!                             throughput
//! ```
//!
//! Before the knee more load brings more throughput than latency, after it more latency. The rule
//! has no threshold, and it holds for rates as for numbers of clients. Points with failed or
//! refused requests count with what was answered, so a server that refuses keeps its knee.
//!
//! Each point sends other prompts, so that none finds the answers of the point before in a cache.

mod cause;

use std::fmt::Write as _;

use serde::Serialize;

use crate::estimate::{mean, percentile};
use crate::record::{Measure, Reads, Reported};
use crate::serve::{Counters, ServeReport};
use crate::table::{Align, INTERRUPTED, table};
pub use cause::{Cause, Finding};

/// The load of one point.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// Requests per second, whether or not the server keeps up.
    Rate(f64),
    /// Requests under way.
    Clients(usize),
}

impl Load {
    /// The load in words.
    pub fn name(self) -> String {
        match self {
            Self::Rate(rate) => format!("{rate} per second"),
            Self::Clients(1) => "1 client".to_owned(),
            Self::Clients(n) => format!("{n} clients"),
        }
    }
}

/// Middle, mean and tail of some times, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Times {
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
}

impl Times {
    fn new(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        if sorted.is_empty() {
            return Self::default();
        }
        let at = |percent| percentile(&sorted, percent);
        Self { mean: mean(values).unwrap_or(0.0), p50: at(50), p99: at(99) }
    }
}

/// One load and its outcome.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// The load.
    pub load: Load,
    /// From the first arrival to the last end, in seconds.
    pub duration_s: f64,
    /// Requests that were sent.
    pub offered: u64,
    /// Requests with a whole answer.
    pub answered: u64,
    /// Whole answers per second.
    pub answers_per_s: f64,
    /// Tokens of answers per second.
    pub output_tokens_per_s: f64,
    /// Share of the requests that met their targets.
    pub goodput_share: f64,
    /// Time to the first token.
    pub ttft_ms: Times,
    /// Time per token after the first.
    pub tpot_ms: Times,
    /// Time to the last token.
    pub end_to_end_ms: Times,
    /// Throughput over mean latency, relative to that of the knee.
    pub power: f64,
    /// Time by which the client sent requests late, P95; absent without a clock.
    pub late_p95_ms: Option<f64>,
    /// Processors that the client used.
    pub client_processors: f64,
    /// The counters of the server, where it publishes any.
    pub counters: Option<Counters>,
    /// The reason why no request was answered, where none was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unanswered: Option<String>,
}

impl Point {
    /// The point of a run at this load.
    pub fn new(load: Load, run: &ServeReport) -> Self {
        let report = run.served.reports().next();
        let duration_s = report.map_or(0.0, |report| report.duration_s).max(1e-9);
        let tpot: Vec<f64> = run.requests.tpot_ms.iter().flatten().copied().collect();
        let late = report.and_then(|report| report.sent_late_ms.as_ref());
        Self {
            load,
            duration_s,
            offered: report.map_or(0, |report| report.offered),
            answered: run.n_answers,
            answers_per_s: run.n_answers as f64 / duration_s,
            output_tokens_per_s: run.n_tokens as f64 / duration_s,
            goodput_share: report.map_or(0.0, |report| report.all.goodput_share),
            ttft_ms: Times::new(&run.requests.ttft_ms),
            tpot_ms: Times::new(&tpot),
            end_to_end_ms: Times::new(&run.requests.end_to_end_ms),
            power: 0.0,
            late_p95_ms: late.map(|late| late.p95),
            // Without an answer there is no time to compare with.
            client_processors: match run.n_answers {
                0 => 0.0,
                _ => run.processor.client_s / duration_s,
            },
            counters: run.counters.clone(),
            unanswered: run.unanswered(),
        }
    }

    fn raw_power(&self) -> f64 {
        if self.end_to_end_ms.mean > 0.0 {
            1e3 * self.answers_per_s / self.end_to_end_ms.mean
        } else {
            0.0
        }
    }

    fn row(&self, is_knee: bool) -> [String; 10] {
        let ms = |x: f64| if x < 100.0 { format!("{x:.1}") } else { format!("{x:.0}") };
        [
            self.load.name(),
            format!("{:.2}", self.answers_per_s),
            format!("{:.1}", self.output_tokens_per_s),
            ms(self.ttft_ms.p50),
            ms(self.ttft_ms.p99),
            ms(self.tpot_ms.p50),
            ms(self.end_to_end_ms.p50),
            ms(self.end_to_end_ms.p99),
            format!("{:.2}", self.power),
            if is_knee { "<- knee" } else { "" }.to_owned(),
        ]
    }
}

/// All points of a sweep.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    workload: String,
    server: String,
    /// The rule by which the knee was found.
    method: &'static str,
    points: Vec<Point>,
    /// Place of the knee; absent where nothing was answered.
    knee: Option<usize>,
    /// Whether the load beyond the knee was measured.
    is_knee_inside: bool,
    /// The cause that keeps the server from more. Without a point beyond the knee only the client
    /// can be one.
    limit: Option<Finding>,
    /// Whether the caller ended it early.
    pub interrupted: bool,
}

/// The rule by which the knee is found.
const METHOD: &str = "most answers per second over mean time of an answer (Kleinrock's power)";

impl Report {
    /// Finds the knee of these points, which have rising loads, and its cause.
    pub fn new(workload: String, server: String, mut points: Vec<Point>) -> Self {
        let powers: Vec<f64> = points.iter().map(Point::raw_power).collect();
        let most = powers.iter().copied().fold(0.0, f64::max);
        for (point, power) in points.iter_mut().zip(&powers) {
            point.power = if most > 0.0 { power / most } else { 0.0 };
        }
        let knee = powers.iter().position(|&power| power == most && most > 0.0);
        let is_knee_inside = knee.is_some_and(|knee| knee + 1 < points.len());
        let limit = match (knee, points.last()) {
            (Some(_), Some(last)) if is_knee_inside => Some(Finding::new(&points[0], last)),
            (_, Some(last)) => Finding::of_client(last),
            _ => None,
        };
        Self {
            workload,
            server,
            method: METHOD,
            points,
            knee,
            is_knee_inside,
            limit,
            interrupted: false,
        }
    }

    /// The reason why no request of any load was answered; `None` where some were, or where none
    /// was sent.
    pub fn unanswered(&self) -> Option<String> {
        if self.points.iter().any(|point| point.answered > 0) {
            return None;
        }
        self.points.iter().find_map(|point| point.unanswered.clone())
    }

    /// The points as a table, the knee and its cause.
    pub fn render(&self) -> String {
        const HEAD: [(&str, Align); 10] = [
            ("load", Align::Left),
            ("answers/s", Align::Right),
            ("tokens/s", Align::Right),
            ("TTFT P50 ms", Align::Right),
            ("P99", Align::Right),
            ("TPOT P50", Align::Right),
            ("e2e P50", Align::Right),
            ("P99", Align::Right),
            ("power", Align::Right),
            ("", Align::Left),
        ];
        let rows: Vec<[String; 10]> = (self.points.iter().enumerate())
            .map(|(at, point)| point.row(self.knee == Some(at)))
            .collect();
        let mut text = format!(
            "{:<10}{}\n{:<10}{}\n\n{}\n",
            "workload",
            self.workload,
            "server",
            self.server,
            table(HEAD, &rows)
        );
        let mut put = |name: &str, what: &str| {
            writeln!(text, "{name:<10}{what}").expect("invariant: strings take everything");
        };
        match self.knee {
            None => {
                let why = self.unanswered().map_or_else(String::new, |why| format!(": {why}"));
                put("knee", &format!("none: nothing was answered{why}"));
            }
            Some(at) if self.is_knee_inside => {
                put("knee", &format!("{}: {METHOD}", self.points[at].load.name()));
            }
            Some(_) => put("knee", "beyond the largest load that was measured"),
        }
        if let Some(Finding { cause, evidence }) = &self.limit {
            put("limit", &format!("{}: {}", cause.name(), evidence.join("; ")));
        }
        if self.interrupted {
            text.push_str(INTERRUPTED);
        }
        text
    }
}

impl Reported for Report {
    const KIND: &'static str = "sweep";

    fn measures(&self) -> Vec<Measure> {
        let of = |point: &Point| {
            let name = |what: &str| format!("{} {what}", point.load.name());
            let mut all = vec![
                Measure::rate(name("output"), "tokens/s", vec![point.output_tokens_per_s]),
                Measure::cost(name("TTFT P50"), "ms", vec![point.ttft_ms.p50]),
                Measure::cost(name("end to end P99"), "ms", vec![point.end_to_end_ms.p99]),
            ];
            // Without an answer there is no time, and 0 would be the best one.
            all.truncate(if point.answered > 0 { 3 } else { 1 });
            all
        };
        self.points.iter().flat_map(of).collect()
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
pub(crate) mod tests {
    use super::*;

    /// A point of a server that answers at this rate with these times.
    pub(crate) fn point(load: Load, answers_per_s: f64, ttft: f64, tpot: f64) -> Point {
        let times = |ms: f64| Times { mean: ms, p50: ms, p99: ms };
        Point {
            load,
            duration_s: 10.0,
            offered: 100,
            answered: 100,
            answers_per_s,
            output_tokens_per_s: 10.0 * answers_per_s,
            goodput_share: 1.0,
            ttft_ms: times(ttft),
            tpot_ms: times(tpot),
            end_to_end_ms: times(ttft + 10.0 * tpot),
            power: 0.0,
            late_p95_ms: None,
            client_processors: 0.01,
            counters: None,
            unanswered: None,
        }
    }

    #[test]
    fn the_knee_of_a_queue_is_at_half_of_its_capacity() {
        // M/M/1 that serves ten requests per second: latency 1 / (10 - rate), power rate * (10 -
        // rate).
        let at = |rate: f64| point(Load::Rate(rate), rate, 1e3 / (10.0 - rate), 0.0);
        let points: Vec<Point> = (1..10).map(|rate| at(f64::from(rate))).collect();
        let report = Report::new("w".to_owned(), "s".to_owned(), points);
        assert_eq!(report.knee, Some(4));
        assert!(report.is_knee_inside && report.limit.is_some());
        assert!((report.points[8].power - 0.36).abs() < 1e-9);
        let text = report.render();
        assert!(text.contains("knee      5 per second") && text.contains("<- knee"), "{text}");
    }

    #[test]
    fn a_knee_that_was_not_passed_has_no_cause() {
        let points = [1, 2, 4].map(|n| point(Load::Clients(n), n as f64, 10.0, 1.0)).to_vec();
        let report = Report::new("w".to_owned(), "s".to_owned(), points);
        assert_eq!((report.knee, report.is_knee_inside), (Some(2), false));
        assert_eq!(report.limit, None);
        assert!(report.render().contains("beyond the largest load"));
        let none = Report::new("w".to_owned(), "s".to_owned(), Vec::new());
        assert!(none.knee.is_none() && none.render().contains("nothing was answered"));
    }
}
