//! Figures as text, for `--once` and for the cells of the screen.

use std::fmt::Write as _;

use super::view::{Named, Quantiles, Traffic, View};

/// A time in seconds, with three digits and its unit.
pub(super) fn time(seconds: f64) -> String {
    match seconds {
        s if !s.is_finite() => "-".to_owned(),
        s if s >= 100.0 => format!("{s:.0} s"),
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 0.1 => format!("{:.0} ms", s * 1e3),
        s if s >= 0.001 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.0} µs", s * 1e6),
    }
}

/// Time since a start, in its two largest units.
pub(super) fn age(seconds: f64) -> String {
    let s = seconds.max(0.0) as u64;
    match (s / 86_400, s / 3600 % 24, s / 60 % 60, s % 60) {
        (0, 0, 0, s) => format!("{s} s"),
        (0, 0, m, s) => format!("{m} min {s:02} s"),
        (0, h, m, _) => format!("{h} h {m:02} min"),
        (d, h, _, _) => format!("{d} d {h:02} h"),
    }
}

/// A rate with a digit behind the point where it is small.
pub(super) fn rate(per_second: f64) -> String {
    if per_second < 100.0 { format!("{per_second:.1}") } else { format!("{per_second:.0}") }
}

/// A share in percent; a dash where there is none.
pub(super) fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.0} %", share * 100.0))
}

/// One of the quantiles, or a dash.
pub(super) fn quantile(quantiles: Option<Quantiles>, of: fn(&Quantiles) -> f64) -> String {
    quantiles.as_ref().map_or_else(|| "-".to_owned(), |quantiles| time(of(quantiles)))
}

/// Median, P95 and P99.
pub(super) fn cells(quantiles: Option<Quantiles>) -> [String; 3] {
    let parts: [fn(&Quantiles) -> f64; 3] = [|q| q.p50, |q| q.p95, |q| q.p99];
    parts.map(|of| quantile(quantiles, of))
}

/// The times of requests, with their names.
pub(super) fn times(traffic: &Traffic) -> [(&'static str, Option<Quantiles>); 4] {
    [
        ("queue", traffic.queue_seconds),
        ("TTFT", traffic.ttft_seconds),
        ("TPOT", traffic.tpot_seconds),
        ("whole", traffic.e2e_seconds),
    ]
}

/// Headings of the table of tenants and models.
pub(super) const COLUMNS: [&str; 9] = [
    "name", "running", "waiting", "req/s", "prompt/s", "tokens/s", "TTFT P95", "TPOT P95", "cached",
];

/// A row of the table of tenants and models.
pub(super) fn row(named: &Named) -> [String; 9] {
    let traffic = &named.traffic;
    [
        named.name.clone(),
        traffic.running.to_string(),
        traffic.waiting.to_string(),
        rate(traffic.requests_per_second),
        rate(traffic.prompt_tokens_per_second),
        rate(traffic.generated_tokens_per_second),
        quantile(traffic.ttft_seconds, |q| q.p95),
        quantile(traffic.tpot_seconds, |q| q.p95),
        percent(traffic.cache_hit_ratio),
    ]
}

/// Everything as lines of text.
pub(super) fn text(url: &str, view: &View) -> String {
    let total = &view.total;
    let mut text = format!(
        "Pelton {} at {url}: {}, up {}\n",
        view.version,
        view.status,
        age(view.uptime_seconds)
    );
    if view.view == "tenant" {
        text.push_str("requests of the tenant of this key alone\n");
    }
    let _ = writeln!(
        text,
        "requests  {} running, {} waiting, {} per second",
        total.running,
        total.waiting,
        rate(total.requests_per_second)
    );
    let _ = writeln!(
        text,
        "tokens    {} generated and {} of prompts per second, {} of prompts cached",
        rate(total.generated_tokens_per_second),
        rate(total.prompt_tokens_per_second),
        percent(total.cache_hit_ratio)
    );
    for (name, quantiles) in times(total) {
        let [p50, p95, p99] = cells(quantiles);
        let n = quantiles.map_or(0, |quantiles| quantiles.n);
        let _ = writeln!(text, "{name:<9} P50 {p50}, P95 {p95}, P99 {p99} of {n}");
    }
    for model in &view.models {
        let Some(engine) = &model.engine else { continue };
        let _ = writeln!(
            text,
            "engine    {}: {} running, {} waiting, busy {}, KV {} of {} blocks, drafts {} accepted",
            model.name,
            engine.running,
            engine.waiting,
            percent(Some(engine.busy_ratio)),
            percent(Some(engine.kv.usage_ratio)),
            engine.kv.blocks,
            percent(engine.drafts.acceptance_ratio)
        );
    }
    for (title, rows) in [("tenants", &view.tenants), ("models", &view.models)] {
        if !rows.is_empty() {
            let _ = write!(text, "{title}\n{}", table(rows));
        }
    }
    // Names come from elsewhere, and must not steer the terminal.
    text.chars().filter(|c| !c.is_control() || *c == '\n').collect()
}

/// Columns in line.
fn table(rows: &[Named]) -> String {
    let rows: Vec<[String; 9]> =
        std::iter::once(COLUMNS.map(str::to_owned)).chain(rows.iter().map(row)).collect();
    let width = |i: usize| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0);
    let widths: [usize; 9] = std::array::from_fn(width);
    let mut text = String::new();
    for row in &rows {
        let _ = write!(text, "  {:<1$}", row[0], widths[0]);
        for (cell, width) in row.iter().zip(widths).skip(1) {
            let _ = write!(text, "  {cell:>width$}");
        }
        text.push('\n');
    }
    text
}
