//! The figures as a table and as JSON.

use std::time::Duration;

use serde::Serialize;

use super::Run;
use crate::record::{Measure, Reads, Reported};
use crate::table::{Align, INTERRUPTED, table};

/// Refusals that the table lists.
const SHOWN_REFUSALS: usize = 10;
/// Slow masks that the table lists.
const SHOWN_SLOW: usize = 5;
/// Slow masks of all schemas that the JSON lists.
const KEPT_SLOW: usize = 50;

/// Quantiles of some times, in microseconds; absent where there are none.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Times {
    n: usize,
    p50_us: Option<f64>,
    p95_us: Option<f64>,
    p99_us: Option<f64>,
    max_us: Option<f64>,
}

impl Times {
    fn new(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |share: f64| {
            let idx = (times.len() as f64 * share) as usize;
            let time = times.get(idx.min(times.len().saturating_sub(1)));
            time.map(|time| time.as_nanos() as f64 / 1e3)
        };
        Self {
            n: times.len(),
            p50_us: at(0.5),
            p95_us: at(0.95),
            p99_us: at(0.99),
            max_us: at(1.0),
        }
    }

    fn row(&self, what: &str) -> [String; 6] {
        let cell = |us: Option<f64>| match us {
            None => "-".to_owned(),
            Some(us) if us < 1000.0 => format!("{us:.1}"),
            Some(us) => format!("{us:.0}"),
        };
        [
            what.to_owned(),
            self.n.to_string(),
            cell(self.p50_us),
            cell(self.p95_us),
            cell(self.p99_us),
            cell(self.max_us),
        ]
    }
}

/// Everything that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    vocabulary: String,
    n_tokens: usize,
    /// Milliseconds to build the tree of the vocabulary, once per model.
    vocabulary_ms: f64,
    n_schemas: usize,
    n_enforced: usize,
    compile: Times,
    first_mask: Times,
    mask: Times,
    fork: Times,
    begin: Times,
    /// The masks that took longest, the longest first.
    slowest: Vec<Slow>,
    /// Share of the tokens that had no choice.
    forced_share: f64,
    /// Walks that came to an end within their tokens.
    n_ended: usize,
    refused: Vec<Refusal>,
    /// Schemas of which a walk came to a place where nothing was allowed; expected to be empty.
    stuck: Vec<Refusal>,
    /// Whether the caller ended it early.
    pub interrupted: bool,
}

/// A mask and its place.
#[derive(Clone, Debug, Serialize)]
struct Slow {
    us: f64,
    schema: String,
    /// The last bytes of the answer before the mask.
    after: String,
}

/// A schema with a reason.
#[derive(Clone, Debug, Serialize)]
struct Refusal {
    schema: String,
    reason: String,
}

impl Report {
    pub(super) fn new(
        vocabulary: &str,
        n_tokens: usize,
        building: Duration,
        runs: &[Run],
        interrupted: bool,
    ) -> Self {
        let enforced = runs.iter().filter(|run| run.refused.is_none());
        let tokens: usize = runs.iter().map(|run| run.n_tokens).sum();
        let forced: usize = runs.iter().map(|run| run.n_forced).sum();
        let reasons = |reason: fn(&Run) -> Option<&String>| {
            let named = runs.iter().filter_map(|run| Some((run, reason(run)?)));
            named
                .map(|(run, reason)| Refusal { schema: run.name.clone(), reason: reason.clone() })
                .collect()
        };
        let slow = |run: &Run| {
            let name = run.name.clone();
            let places = run.slowest.clone().into_iter();
            places.map(move |(took, after)| Slow {
                us: took.as_nanos() as f64 / 1e3,
                schema: name.clone(),
                after,
            })
        };
        let mut slowest: Vec<Slow> = runs.iter().flat_map(slow).collect();
        slowest.sort_by(|a, b| b.us.total_cmp(&a.us));
        slowest.truncate(KEPT_SLOW);
        Self {
            vocabulary: vocabulary.to_owned(),
            n_tokens,
            vocabulary_ms: building.as_secs_f64() * 1e3,
            n_schemas: runs.len(),
            n_enforced: enforced.clone().count(),
            compile: Times::new(enforced.clone().map(|run| run.compile).collect()),
            first_mask: Times::new(enforced.filter_map(|run| run.first_mask).collect()),
            mask: Times::new(runs.iter().flat_map(|run| run.masks.clone()).collect()),
            fork: Times::new(runs.iter().flat_map(|run| run.forks.clone()).collect()),
            begin: Times::new(runs.iter().flat_map(|run| run.begins.clone()).collect()),
            slowest,
            forced_share: forced as f64 / tokens.max(1) as f64,
            n_ended: runs.iter().map(|run| run.n_ended).sum(),
            refused: reasons(|run| run.refused.as_ref()),
            stuck: reasons(|run| run.stuck.as_ref()),
            interrupted,
        }
    }

    /// The first refusal in words, where schemas were measured and every one was refused.
    pub fn refused(&self) -> Option<String> {
        let first = self.refused.first().filter(|_| self.n_enforced == 0)?;
        Some(format!("every schema was refused; {}: {}", first.schema, first.reason))
    }

    /// The schema of which a walk got stuck, in words.
    pub fn stuck(&self) -> Option<String> {
        let first = self.stuck.first()?;
        Some(format!("a walk through {} got stuck: {}", first.schema, first.reason))
    }

    /// The report as a table.
    pub fn render(&self) -> String {
        let mut text = format!(
            "{} ({} tokens, tree built in {:.0} ms), {} of {} schemas enforced\n\n",
            self.vocabulary, self.n_tokens, self.vocabulary_ms, self.n_enforced, self.n_schemas
        );
        let right = Align::Right;
        let head = [
            ("µs", Align::Left),
            ("n", right),
            ("p50", right),
            ("p95", right),
            ("p99", right),
            ("max", right),
        ];
        let rows = [
            self.compile.row("compile"),
            self.begin.row("begin of an answer"),
            self.first_mask.row("first mask"),
            self.mask.row("mask"),
            self.fork.row("copy of a state"),
        ];
        text.push_str(&table(head, &rows));
        text.push_str(&format!(
            "\n{:.0} % of the tokens were forced; {} walks came to an end\n",
            100.0 * self.forced_share,
            self.n_ended
        ));
        for Slow { us, schema, after } in self.slowest.iter().take(SHOWN_SLOW) {
            text.push_str(&format!("{us:.0} µs for the mask of {schema} after {after:?}\n"));
        }
        for refusal in self.refused.iter().take(SHOWN_REFUSALS) {
            text.push_str(&format!("refused {}: {}\n", refusal.schema, refusal.reason));
        }
        if self.refused.len() > SHOWN_REFUSALS {
            let more = self.refused.len() - SHOWN_REFUSALS;
            text.push_str(&format!("and {more} more; --json lists them\n"));
        }
        if self.interrupted {
            text.push_str(INTERRUPTED);
        }
        text
    }
}

impl Reported for Report {
    const KIND: &'static str = "grammar";

    fn measures(&self) -> Vec<Measure> {
        let times = [
            ("compile", &self.compile),
            ("first mask", &self.first_mask),
            ("mask", &self.mask),
            ("fork", &self.fork),
        ];
        let of = |(name, times): (&str, &Times)| {
            let figures = [("P50", times.p50_us), ("P99", times.p99_us)].into_iter();
            let measure = |(which, us)| Measure::cost(format!("{name} {which}"), "us", vec![us]);
            let known = figures.filter_map(|(which, us)| Some((which, us?)));
            known.map(measure).collect::<Vec<_>>()
        };
        times.into_iter().flat_map(of).collect()
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
