//! Several runs of one trace, side by side.

use super::render::{line, milliseconds, render_groups, thousands};
use super::{Distribution, Group, Report};
use serde::Serialize;

/// Runs of the same trace, each under its own name.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Comparison {
    /// The runs; later ones are compared with the first.
    pub variants: Vec<Variant>,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Variant {
    /// Its distinguishing settings.
    pub name: String,
    /// Its figures.
    pub report: Report,
}

/// One column: its name, what it shows, and how.
struct Column {
    name: &'static str,
    value: fn(&Report) -> Option<f64>,
    show: fn(f64) -> String,
}

const COLUMNS: &[Column] = &[
    Column { name: "TTFT P50", value: |r| pick(&r.all.ttft_ms, |d| d.p50), show: milliseconds },
    Column { name: "TTFT P99", value: |r| pick(&r.all.ttft_ms, |d| d.p99), show: milliseconds },
    Column { name: "TPOT P50", value: |r| pick(&r.all.tpot_ms, |d| d.p50), show: milliseconds },
    Column { name: "TPOT P99", value: |r| pick(&r.all.tpot_ms, |d| d.p99), show: milliseconds },
    Column {
        name: "e2e mean",
        value: |r| pick(&r.all.end_to_end_ms, |d| d.mean),
        show: milliseconds,
    },
    Column { name: "tokens/s", value: |r| Some(r.all.output_tokens_per_s), show: one_decimal },
    Column { name: "goodput %", value: |r| Some(100.0 * r.all.goodput_share), show: one_decimal },
    Column { name: "cached %", value: |r| Some(100.0 * r.all.cached_share), show: one_decimal },
    Column { name: "preempted", value: preemptions, show: count },
    Column {
        name: "refused",
        value: |r| Some(r.refused.values().sum::<u64>() as f64),
        show: count,
    },
    Column { name: "duration s", value: |r| Some(r.duration_s), show: one_decimal },
];

impl Comparison {
    /// Adds a run.
    pub fn add(&mut self, name: String, report: Report) {
        self.variants.push(Variant { name, report });
    }

    /// A table with a row per run, and below each but the first how it relates to that: `x0.50` is
    /// half of the first run's value. Times are in milliseconds.
    pub fn render(&self) -> String {
        let names = self.variants.iter().map(|variant| variant.name.chars().count());
        let first = names.max().unwrap_or(0).max(8) + 1;
        let mut text = String::new();
        let mut header = vec!["variant"];
        header.extend(COLUMNS.iter().map(|column| column.name));
        line(&mut text, &header, first);
        let row = |text: &mut String, name: &str, cells: Vec<String>| {
            let mut row = vec![name];
            row.extend(cells.iter().map(String::as_str));
            line(text, &row, first);
        };
        for (idx, Variant { name, report }) in self.variants.iter().enumerate() {
            let told = |column: &Column| {
                (column.value)(report).map_or_else(|| "-".to_owned(), column.show)
            };
            row(&mut text, name, COLUMNS.iter().map(told).collect());
            if idx > 0 {
                let base = &self.variants[0].report;
                let related = |column: &Column| {
                    let (own, base) = ((column.value)(report), (column.value)(base));
                    let ratio = own.zip(base).filter(|&(_, base)| base > 0.0);
                    ratio.map_or_else(String::new, |(own, base)| format!("x{:.2}", own / base))
                };
                row(&mut text, "", COLUMNS.iter().map(related).collect());
            }
        }
        render_groups(&mut text, &self.groups(|report| &report.classes), first + 8);
        render_groups(&mut text, &self.groups(|report| &report.tenants), first + 8);
        text
    }

    /// The groups of all variants under the names of both: first all variants of one group, then
    /// those of the next, because that is what people compare.
    fn groups(&self, of: fn(&Report) -> &Vec<Group>) -> Vec<(String, &Group)> {
        let mut names: Vec<&str> = Vec::new();
        for group in self.variants.iter().flat_map(|variant| of(&variant.report)) {
            if !names.contains(&group.name.as_str()) {
                names.push(&group.name);
            }
        }
        let mut rows = Vec::new();
        for name in names {
            for variant in &self.variants {
                let found = of(&variant.report).iter().find(|group| group.name == name);
                rows.extend(found.map(|group| (format!("{name}, {}", variant.name), group)));
            }
        }
        rows
    }
}

fn pick(times: &Option<Distribution>, which: fn(&Distribution) -> f64) -> Option<f64> {
    times.as_ref().map(which)
}

fn preemptions(report: &Report) -> Option<f64> {
    report.totals.as_ref().map(|totals| totals.preemptions as f64)
}

fn one_decimal(x: f64) -> String {
    format!("{x:.1}")
}

fn count(x: f64) -> String {
    thousands(x as u64)
}
