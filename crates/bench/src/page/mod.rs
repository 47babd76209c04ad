//! Reports as one page of HTML that needs nothing else: no script, no font, no network.
//!
//! ```text
//! report (JSON) ─▶ charts of its kind (SVG) ─┐
//!               ─▶ machine, figures, notes ──┴▶ page
//! ```
//!
//! | kind | charts |
//! |---|---|
//! | sweep | times over throughput with the knee |
//! | serve | histograms of TTFT and of the whole time; the whole time over the arrival |
//! | offline, model | tokens per second by batch; operations per second under the roofline |
//! | ablate | gains of the techniques, one after the other |
//! | ab | speed and size of two models; their divergence along the text |
//! | quantize | errors, bits, outliers and times, matrix by matrix |
//! | all | control charts of figures with at least eight samples |
//!
//! The figures of the page are those of the file; nothing is measured or estimated here.

mod canvas;
mod charts;
mod svg;

use std::fmt::Write as _;

use serde_json::Value;

use crate::Result;
use crate::record::{BesideBaseline, Better, Measure, Recorded};

/// One chart: a name that a file can have, and its picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// Letters, digits and `-`.
    pub name: String,
    /// The picture as SVG.
    pub svg: String,
    /// The same as the bytes of a PNG file, 760 by 400 pixels.
    pub png: Vec<u8>,
}

/// A page and its charts.
#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    /// The whole page, charts included.
    pub html: String,
    /// The charts alone.
    pub charts: Vec<Chart>,
}

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;\
    padding:0 1rem;color:#222;background:#fff}h1{font-size:1.5rem}h2{font-size:1.2rem;\
    margin-top:2.5rem;border-top:1px solid #ccc;padding-top:1rem}table{border-collapse:collapse;\
    margin:1rem 0}td,th{padding:.15rem .7rem;text-align:right;border-bottom:1px solid #ddd}\
    td:first-child,th:first-child{text-align:left}svg{max-width:100%;height:auto;display:block;\
    margin:1rem 0}code{background:#f3f3f3;padding:0 .2rem}.note{color:#a33}";

/// The page of some reports, in this order; each comes with the name of its file.
///
/// # Errors
///
/// A chart that cannot be drawn.
pub fn page(reports: &[(String, Recorded)]) -> Result<Page> {
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>pelton bench</title>\
         <style>{STYLE}</style></head><body>\n<h1>Measurements</h1>\n"
    );
    let mut all = Vec::new();
    for (idx, (file, recorded)) in reports.iter().enumerate() {
        let charts = charts::of(recorded)?;
        section(&mut html, file, recorded, &charts);
        let number = |chart: Chart| Chart { name: format!("{}-{}", idx + 1, chart.name), ..chart };
        all.extend(charts.into_iter().map(number));
    }
    html.push_str("</body></html>\n");
    Ok(Page { html, charts: all })
}

fn section(html: &mut String, file: &str, recorded: &Recorded, charts: &[Chart]) {
    let report = &recorded.report;
    put(html, format_args!("<h2>{}: {}</h2>\n", escaped(&report.kind), escaped(file)));
    let command = report.command.join(" ");
    put(html, format_args!("<p><code>{}</code><br>\n", escaped(&command)));
    let machine = escaped(&report.machine.words());
    put(html, format_args!("{machine}; pelton {}</p>\n", escaped(&report.pelton)));
    if report.interrupted {
        html.push_str("<p class=\"note\">The run was interrupted: not all was measured.</p>\n");
    }
    if let Some(noise) = report.noise {
        let class = if noise.is_noisy { " class=\"note\"" } else { "" };
        put(html, format_args!("<p{class}>The run was in {}.</p>\n", escaped(&noise.words())));
    }
    if let Some(reads) = report.reads.filter(BesideBaseline::differs) {
        put(html, format_args!("<p class=\"note\">In the run, {}.</p>\n", escaped(&reads.words())));
    }
    if report.machine.baseline.as_ref().is_some_and(|baseline| baseline.is_noisy) {
        html.push_str(
            "<p class=\"note\">`pelton doctor` measured the machine in a noisy minute.</p>\n",
        );
    }
    if let Some(note) = without_answers(&recorded.whole) {
        put(html, format_args!("<p class=\"note\">{note}</p>\n"));
    }
    for chart in charts {
        html.push_str(&chart.svg);
        html.push('\n');
    }
    html.push_str(
        "<table><tr><th>figure</th><th>median</th><th>95 % interval</th><th>unit</th>\
         <th>better</th><th>samples</th></tr>\n",
    );
    for measure in &recorded.measures {
        row(html, measure);
    }
    html.push_str("</table>\n");
}

/// A note where requests ended without an answer, since no time includes them.
fn without_answers(whole: &Value) -> Option<String> {
    let list = |name: &str| whole[name].as_array().map_or(&[][..], Vec::as_slice);
    let count = |value: &Value| value.as_u64().unwrap_or(0);
    let runs = list("variants").iter().map(|variant| {
        let report = &variant["report"];
        let refused = report["refused"].as_object();
        let n_refused: u64 = refused.map_or(0, |refused| refused.values().map(count).sum());
        (count(&report["offered"]), count(&report["failed"]) + n_refused)
    });
    let points = list("points").iter().map(|point| {
        let offered = count(&point["offered"]);
        (offered, offered.saturating_sub(count(&point["answered"])))
    });
    let (offered, missing) = runs.chain(points).fold((0, 0), |(a, b), (c, d)| (a + c, b + d));
    (missing > 0).then(|| {
        format!(
            "{missing} of {offered} requests ended without a whole answer. They may have waited \
             longest, and no time of this report includes them."
        )
    })
}

fn row(html: &mut String, measure: &Measure) {
    let Measure { name, unit, better, samples } = measure;
    let Some(median) = measure.median() else { return };
    let interval = median.interval.map(|x| format!("{} to {}", digits(x.low), digits(x.high)));
    let better = match better {
        Better::Higher => "higher",
        Better::Lower => "lower",
    };
    put(
        html,
        format_args!(
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{better}</td><td>{}</td></tr>\n",
            escaped(name),
            digits(median.value),
            interval.as_deref().unwrap_or("-"),
            escaped(unit),
            samples.len(),
        ),
    );
}

/// A number with about four digits that matter.
fn digits(x: f64) -> String {
    match x.abs() {
        a if a >= 1000.0 => format!("{x:.0}"),
        a if a >= 10.0 => format!("{x:.1}"),
        a if a >= 0.01 || a == 0.0 => format!("{x:.3}"),
        _ => format!("{x:.2e}"),
    }
}

/// Text that HTML shows as it is.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            c if c.is_control() => safe.push(' '),
            c => safe.push(c),
        }
    }
    safe
}

fn put(text: &mut String, args: std::fmt::Arguments<'_>) {
    text.write_fmt(args).expect("invariant: strings take everything");
}

#[cfg(test)]
mod tests;
