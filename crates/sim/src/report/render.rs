//! The report for people.

use super::{Distribution, Group, Report, Totals};
use std::fmt::Write as _;

impl Report {
    /// Some lines of text, without a headline.
    pub fn render(&self) -> String {
        let mut text = String::new();
        self.render_counts(&mut text);
        let header =
            ["ms", "requests", "mean", "P50", "P95", "P99", "longest", "from shortest to longest"];
        line(&mut text, &header, 14);
        let Group { queue_ms, ttft_ms, tpot_ms, end_to_end_ms, .. } = &self.all;
        for (name, times) in [
            ("queue", queue_ms),
            ("TTFT", ttft_ms),
            ("TPOT", tpot_ms),
            ("ITL", &self.itl_ms),
            ("end to end", end_to_end_ms),
            ("TTFT, sent", &self.sent_ttft_ms),
            ("e2e, sent", &self.sent_end_to_end_ms),
            ("sent late", &self.sent_late_ms),
        ] {
            if let Some(times) = times {
                text.push_str(&times.row(name));
            }
        }
        for groups in [&self.classes, &self.tenants] {
            let rows: Vec<_> = groups.iter().map(|group| (group.name.clone(), group)).collect();
            render_groups(&mut text, &rows, 14);
        }
        text
    }

    fn render_counts(&self, text: &mut String) {
        let Self { offered, unfinished, failed, refused, all, .. } = self;
        let finished = thousands(all.finished as u64);
        let mut requests = format!("{} offered, {finished} finished", thousands(*offered));
        let n_refused: u64 = refused.values().sum();
        if n_refused > 0 {
            let reasons: Vec<String> =
                refused.iter().map(|(reason, n)| format!("{reason} {}", thousands(*n))).collect();
            put(&mut requests, format_args!(", {} refused", thousands(n_refused)));
            put(&mut requests, format_args!(" ({})", reasons.join(", ")));
        }
        for (n, what) in [(*failed, "failed"), (*unfinished, "unfinished")] {
            if n > 0 {
                put(&mut requests, format_args!(", {} {what}", thousands(n)));
            }
        }
        let mut entry = |name: &str, what: String| put(text, format_args!("{name:<14}{what}\n"));
        entry("requests", requests);
        if let Some(warning) = self.warning() {
            entry("warning", warning);
        }
        entry("time", self.time());
        entry(
            "throughput",
            format!(
                "{:.1} tokens/s generated, {:.1} tokens/s of prompts, {:.1} % of those cached",
                all.output_tokens_per_s,
                self.prompt_tokens_per_s,
                100.0 * all.cached_share,
            ),
        );
        entry(
            "goodput",
            format!(
                "{:.3} requests/s; {:.1} % of those offered ended within their targets",
                all.goodput_per_s,
                100.0 * all.goodput_share
            ),
        );
        if let Some(totals) = &self.totals {
            entry("memory", memory(totals));
        }
        text.push('\n');
    }

    /// The requests that no time of the report includes, where there are any.
    fn warning(&self) -> Option<String> {
        let n_refused: u64 = self.refused.values().sum();
        let n_missing = self.failed + n_refused;
        (n_missing > 0).then(|| {
            format!(
                "all times are of whole answers: {} requests without one, which may have waited \
                 longest, are in no mean and no percentile",
                thousands(n_missing)
            )
        })
    }

    fn time(&self) -> String {
        let mut time = format!("{:.1} s", self.duration_s);
        if let (Some(share), Some(totals)) = (self.busy_share, &self.totals) {
            let steps = totals.steps.max(1) as f64;
            put(
                &mut time,
                format_args!(
                    ", {:.0} % of it busy; {} steps of {:.1} ms and {:.1} tokens",
                    100.0 * share,
                    thousands(totals.steps),
                    1e3 * totals.busy_s / steps,
                    totals.computed_tokens as f64 / steps,
                ),
            );
        }
        time
    }
}

impl Distribution {
    /// A line of the table of times.
    fn row(&self, name: &str) -> String {
        let cells = [self.mean, self.p50, self.p95, self.p99, self.max].map(milliseconds);
        let [mean, p50, p95, p99, max] = cells.each_ref().map(String::as_str);
        let spark = format!("|{}|", self.sparkline);
        let mut text = String::new();
        let cells = [name, &thousands(self.n as u64), mean, p50, p95, p99, max, &spark];
        line(&mut text, &cells, 14);
        text
    }
}

/// The use of memory for keys and values, in words.
fn memory(totals: &Totals) -> String {
    let mut memory = format!("{} preemptions", thousands(totals.preemptions));
    if let (Some(lost), Some(kept)) = (totals.recomputed_preemptions, totals.restored_preemptions) {
        let (lost, kept) = (thousands(lost), thousands(kept));
        put(&mut memory, format_args!(" ({lost} computed again, {kept} brought back)"));
    }
    for (n, what) in [
        (totals.recomputed_tokens, "tokens computed again"),
        (totals.swapped_out_blocks, "blocks swapped out"),
        (totals.swapped_in_blocks, "in"),
    ] {
        if let Some(n) = n {
            put(&mut memory, format_args!(", {} {what}", thousands(n)));
        }
    }
    if let (Some(running), Some(share)) = (totals.mean_running, totals.mean_kv_share) {
        let share = 100.0 * share;
        put(&mut memory, format_args!("; {running:.1} requests hold {share:.0} % of blocks"));
    }
    memory
}

/// A table of groups, each under its name, after an empty line; nothing where there are none.
pub(super) fn render_groups(text: &mut String, rows: &[(String, &Group)], first: usize) {
    if rows.is_empty() {
        return;
    }
    text.push('\n');
    let header = [
        "ms", "requests", "refused", "TTFT P50", "P99", "TPOT P50", "P99", "tokens/s", "goodput",
        "service",
    ];
    line(text, &header, first);
    for (name, group) in rows {
        let pick = |times: &Option<Distribution>, which: fn(&Distribution) -> f64| {
            times.as_ref().map_or_else(|| "-".to_owned(), |told| milliseconds(which(told)))
        };
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        let cells = [
            name.clone(),
            thousands(group.finished as u64),
            thousands(group.refused as u64),
            pick(&group.ttft_ms, |told| told.p50),
            pick(&group.ttft_ms, |told| told.p99),
            pick(&group.tpot_ms, |told| told.p50),
            pick(&group.tpot_ms, |told| told.p99),
            format!("{:.1}", group.output_tokens_per_s),
            percent(group.goodput_share),
            group.service_share.map_or_else(|| "-".to_owned(), percent),
        ];
        line(text, &cells.each_ref().map(String::as_str), first);
    }
}

/// One line of a table: the first cell to the left in `first` columns, the others to the right.
pub(super) fn line(text: &mut String, cells: &[&str], first: usize) {
    let mut line = String::new();
    for (idx, cell) in cells.iter().enumerate() {
        match idx {
            0 => put(&mut line, format_args!("{cell:<first$}")),
            _ => put(&mut line, format_args!(" {cell:>10}")),
        }
    }
    text.push_str(line.trim_end());
    text.push('\n');
}

/// Three digits that matter, more only before the point.
pub(super) fn milliseconds(ms: f64) -> String {
    match ms {
        ..0.9995 => format!("{ms:.3}"),
        ..9.995 => format!("{ms:.2}"),
        ..99.95 => format!("{ms:.1}"),
        _ => thousands(ms.round() as u64),
    }
}

/// Digits in groups of three.
pub(super) fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut told = String::with_capacity(digits.len() + digits.len() / 3);
    for (idx, digit) in digits.chars().enumerate() {
        if idx > 0 && (digits.len() - idx).is_multiple_of(3) {
            told.push(',');
        }
        told.push(digit);
    }
    told
}

pub(super) fn put(text: &mut String, args: std::fmt::Arguments<'_>) {
    text.write_fmt(args).expect("invariant: strings take everything");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_told_as_people_read_them() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
        let times = [0.1234, 1.2345, 12.345, 99.96, 1234.5];
        assert_eq!(times.map(milliseconds), ["0.123", "1.23", "12.3", "100", "1,235"]);
    }
}
