//! Two runs of a benchmark: which figures differ, by how much, and whether chance explains it.
//!
//! ```text
//! pairs of reports     A1 B1   A2 B2   ...      several pairs, run in turn, cancel slow drifts
//! a figure             logarithms of its samples, far ones pulled in, less the pair's median
//! its statistic        |mean(B) - mean(A)| / standard error (Welch)
//! by chance            A and B are dealt anew within each pair, 1,999 times
//! significance         share of the deals in which *any* figure is at least so far apart
//! ```
//!
//! Labels are exchangeable if nothing differs, so no distribution is assumed (Fisher, 1935).
//! Comparing with the largest statistic of all figures of a deal keeps the chance of one false
//! alarm in the whole report at the level, however many figures there are and however they hang
//! together (Westfall and Young, 1993). A deal is the same for all figures with equally many
//! samples: a slow round stays slow in each of them.
//!
//! Samples beyond 1.5 robust deviations of A and B together count as if they lay there, so that one
//! disturbed round does not hide a difference; the limits are those of both runs, which keeps the
//! test exact. This is about rounds: a P99 is measured in each round with all its values, and is a
//! sample like any other.
//!
//! Tried and dropped: trimmed means (exchanging the trimmed rounds changes nothing, so with five
//! rounds no difference is significant). Not taken: ranks (with five rounds no single figure of
//! eight could be significant), Bonferroni's correction (the same).

mod permute;
mod render;

use serde::Serialize;

use crate::estimate::Interval;
use crate::record::{BesideBaseline, Better, Recorded};
use crate::{BenchError, Result};
use permute::{Figure, significances};

/// How two runs are compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Chance of calling any difference where there is none.
    pub level: f64,
    /// Smallest difference that counts, in per cent.
    pub least_percent: f64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { level: 0.03, least_percent: 1.0 }
    }
}

/// How a figure of B relates to that of A.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Chance explains the difference, or it is too small to count.
    Same,
    /// B is better.
    Better,
    /// B is worse.
    Worse,
    /// Too few samples for any difference to be significant.
    TooFew,
}

impl Verdict {
    fn name(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Better => "better",
            Self::Worse => "WORSE",
            Self::TooFew => "too few rounds",
        }
    }
}

/// One figure of both runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// Its unit.
    pub unit: String,
    /// The direction in which it improves.
    pub better: Better,
    /// Mean of A, far samples pulled in; geometric where all are above zero.
    pub a: f64,
    /// The same of B.
    pub b: f64,
    /// By how much B is above A, in per cent; absent where A is zero.
    pub change_percent: Option<f64>,
    /// Its interval of 95 %; absent with fewer than two samples each.
    pub interval_percent: Option<Interval>,
    /// Chance of a difference like this where there is none, all figures considered.
    pub significance: f64,
    /// The verdict.
    pub verdict: Verdict,
}

/// All figures that both runs have.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Kind of the benchmark.
    pub kind: String,
    /// Pairs of reports.
    pub n_pairs: usize,
    /// Chance of calling any difference where there is none.
    pub level: f64,
    /// Smallest difference that counts, in per cent.
    pub least_percent: f64,
    /// The figures.
    pub rows: Vec<Row>,
    /// Figures that one of the runs lacks.
    pub missing: Vec<String>,
    /// Things that make the comparison less sure.
    pub warnings: Vec<String>,
}

/// Compares pairs of reports, A before B in each.
///
/// # Errors
///
/// No pair, reports of different kinds or units, no figure in common.
pub fn compare(pairs: &[(Recorded, Recorded)], limits: Limits) -> Result<Comparison> {
    let Some((first, _)) = pairs.first() else {
        return Err(BenchError::invalid("a comparison needs two reports"));
    };
    let all = || pairs.iter().flat_map(|(a, b)| [a, b]);
    let kind = &first.report.kind;
    if let Some(other) = all().find(|other| other.report.kind != *kind) {
        let other = &other.report.kind;
        let message =
            format!("a report of `bench {kind}` and one of `bench {other}` cannot be compared");
        return Err(BenchError::invalid(message));
    }
    let mut names: Vec<&str> = Vec::new();
    for measure in all().flat_map(|report| &report.measures) {
        if !names.contains(&measure.name.as_str()) {
            names.push(&measure.name);
        }
    }
    let has = |report: &&Recorded, name: &str| report.measures.iter().any(|m| m.name == name);
    let (common, missing): (Vec<&str>, Vec<&str>) =
        names.into_iter().partition(|name| all().all(|report| has(&report, name)));
    let figures: Vec<Figure> =
        common.iter().map(|name| Figure::of(pairs, name)).collect::<Result<_>>()?;
    if figures.is_empty() {
        return Err(BenchError::invalid_with_hint(
            "the reports have no figure in common",
            "run both with the same flags",
        ));
    }
    let significances = significances(&figures);
    let rows = figures.iter().zip(significances).map(|(figure, found)| row(figure, found, limits));
    Ok(Comparison {
        kind: kind.clone(),
        n_pairs: pairs.len(),
        level: limits.level,
        least_percent: limits.least_percent,
        rows: rows.collect(),
        missing: missing.into_iter().map(str::to_owned).collect(),
        warnings: warnings(pairs),
    })
}

impl Comparison {
    /// Figures with a verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.rows.iter().filter(|row| row.verdict == verdict).count()
    }

    /// Whether any figure is worse.
    pub fn is_worse(&self) -> bool {
        self.count(Verdict::Worse) > 0
    }
}

fn row(figure: &Figure, significance: f64, limits: Limits) -> Row {
    let (a, b) = figure.means();
    let change = (a != 0.0).then(|| 100.0 * (b / a - 1.0));
    let is_large = change.is_none_or(|change| change.abs() >= limits.least_percent);
    let verdict = match (figure.least_significance() > limits.level, b > a) {
        (true, _) => Verdict::TooFew,
        _ if significance > limits.level || !is_large => Verdict::Same,
        (_, is_higher) if is_higher == (figure.better == Better::Higher) => Verdict::Better,
        _ => Verdict::Worse,
    };
    Row {
        name: figure.name.clone(),
        unit: figure.unit.clone(),
        better: figure.better,
        a,
        b,
        change_percent: change,
        interval_percent: figure.interval_percent(),
        significance,
        verdict,
    }
}

fn warnings(pairs: &[(Recorded, Recorded)]) -> Vec<String> {
    let all = || pairs.iter().flat_map(|(a, b)| [a, b]);
    let mut warnings = Vec::new();
    if let Some((a, b)) = pairs.iter().find(|(a, b)| !a.report.machine.is_like(&b.report.machine)) {
        let (a, b) = (a.report.machine.words(), b.report.machine.words());
        warnings.push(format!("the machines differ: {a}; {b}"));
    }
    let noisy = |report: &&Recorded| {
        report.report.machine.baseline.as_ref().is_some_and(|baseline| baseline.is_noisy)
    };
    if all().any(|report| noisy(&report)) {
        warnings.push("the baseline of the machine was measured in a noisy minute".to_owned());
    }
    if let Some(noise) = all().filter_map(|run| run.report.noise).find(|noise| noise.is_noisy) {
        warnings.push(format!("a run was in {}", noise.words()));
    }
    if let Some(reads) = all().filter_map(|run| run.report.reads).find(BesideBaseline::differs) {
        warnings.push(format!("in a run, {}", reads.words()));
    }
    if all().any(|report| report.report.interrupted) {
        warnings.push("a run was interrupted".to_owned());
    }
    if pairs.len() == 1 {
        let why = "one run each: what changes between two starts of a program counts as a difference; \
                   several pairs of runs, in turn, tell more";
        warnings.push(why.to_owned());
    }
    warnings
}

impl Figure {
    /// The figure of this name in all pairs.
    fn of(pairs: &[(Recorded, Recorded)], name: &str) -> Result<Self> {
        let samples = |report: &Recorded| {
            let found = report.measures.iter().find(|measure| measure.name == name);
            found.cloned().expect("invariant: all reports have it")
        };
        let both: Vec<_> = pairs.iter().map(|(a, b)| (samples(a), samples(b))).collect();
        let first = &both[0].0;
        let differs = |unit: &str, better| unit != first.unit || better != first.better;
        if both.iter().any(|(a, b)| differs(&a.unit, a.better) || differs(&b.unit, b.better)) {
            return Err(BenchError::invalid(format!(
                "the reports have `{name}` in different units"
            )));
        }
        let (unit, better) = (first.unit.clone(), first.better);
        let strata = both.into_iter().map(|(a, b)| (a.samples, b.samples)).collect();
        Ok(Self::new(name.to_owned(), unit, better, strata))
    }
}

#[cfg(test)]
mod tests;
