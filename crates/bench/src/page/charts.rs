//! The charts of each kind of report.

use serde_json::Value;

use super::Chart;
use super::svg::{Axes, Bar, Line, bars, lines, log_lines};
use crate::Result;
use crate::record::{Measure, Recorded};

/// Fewest samples of a control chart, and most of these charts on a page.
const CONTROLLED: (usize, usize) = (8, 6);
/// Bars of a histogram.
const BINS: usize = 40;

/// All charts of a report.
///
/// # Errors
///
/// A chart that cannot be drawn.
pub(super) fn of(recorded: &Recorded) -> Result<Vec<Chart>> {
    let whole = &recorded.whole;
    let mut charts = match recorded.report.kind.as_str() {
        "sweep" => curve(whole)?.into_iter().collect(),
        "serve" => served(whole)?,
        "offline" | "model" => [by_batch(whole)?, roofline(whole)?].into_iter().flatten().collect(),
        "ablate" => waterfall(whole)?.into_iter().collect(),
        "ab" => side_by_side(whole)?,
        "quantize" => quantized(whole)?,
        _ => Vec::new(),
    };
    let long = recorded.measures.iter().filter(|measure| measure.samples.len() >= CONTROLLED.0);
    for (idx, measure) in long.take(CONTROLLED.1).enumerate() {
        charts.push(control(idx + 1, measure)?);
    }
    Ok(charts)
}

fn array<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().map_or(&[], Vec::as_slice)
}

/// Times over throughput.
fn curve(whole: &Value) -> Result<Option<Chart>> {
    let points = array(whole, "points");
    let line = |name: &str, time: &str, which: &str| Line {
        name: name.to_owned(),
        points: points
            .iter()
            .filter_map(|p| Some((p["answers_per_s"].as_f64()?, p[time][which].as_f64()?)))
            .collect(),
        is_joined: true,
    };
    let drawn = [
        line("end to end P50", "end_to_end_ms", "p50"),
        line("end to end P99", "end_to_end_ms", "p99"),
        line("TTFT P50", "ttft_ms", "p50"),
    ];
    if drawn[0].points.is_empty() {
        return Ok(None);
    }
    let knee = whole["knee"].as_u64().and_then(|at| drawn[0].points.get(at as usize)).copied();
    let axes = Axes {
        name: "curve",
        title: "Times over throughput",
        x: "answers per second",
        y: "milliseconds",
    };
    lines(axes, &drawn, knee.map(|point| (point, "knee"))).map(Some)
}

fn served(whole: &Value) -> Result<Vec<Chart>> {
    let requests = &whole["requests"];
    let values = |name: &str| -> Vec<f64> {
        array(requests, name).iter().filter_map(Value::as_f64).collect()
    };
    let (arrived, times) = (values("arrived_s"), values("end_to_end_ms"));
    let mut charts = Vec::new();
    for (name, title, values) in [
        ("ttft", "Time to the first token", values("ttft_ms")),
        ("end-to-end", "Time to the last token", times.clone()),
    ] {
        charts.extend(histogram(name, title, &values)?);
    }
    charts.extend(by_percentile(whole)?);
    if !arrived.is_empty() {
        let points = arrived.into_iter().zip(times).collect();
        let line = Line { name: "a request".to_owned(), points, is_joined: false };
        let axes = Axes {
            name: "timeline",
            title: "Time to the last token by arrival",
            x: "arrival, s",
            y: "milliseconds",
        };
        charts.push(lines(axes, &[line], None)?);
    }
    Ok(charts)
}

/// Times by the share of slower ones, from the histograms of a served workload.
fn by_percentile(whole: &Value) -> Result<Option<Chart>> {
    let line = |(field, name): (&str, &str)| {
        let buckets = array(&whole["histograms"][field], "buckets_ms");
        let bucket = |bucket: &Value| Some((bucket[1].as_f64()?, bucket[2].as_f64()?));
        let buckets: Vec<(f64, f64)> = buckets.iter().filter_map(bucket).collect();
        let n: f64 = buckets.iter().map(|(_, n)| n).sum();
        let mut left = n;
        let point = |(ms, count): (f64, f64)| {
            let point = (n / left, ms);
            left -= count;
            point
        };
        let points = buckets.into_iter().map(point).collect();
        Line { name: name.to_owned(), points, is_joined: true }
    };
    let kinds = [("ttft", "TTFT"), ("itl", "ITL"), ("tpot", "TPOT"), ("end_to_end", "end to end")];
    let drawn: Vec<Line> =
        kinds.map(line).into_iter().filter(|line| line.points.len() > 1).collect();
    if drawn.is_empty() {
        return Ok(None);
    }
    let axes = Axes {
        name: "percentiles",
        title: "Times by rank (10 is P90, 100 is P99)",
        x: "one in so many is slower",
        y: "milliseconds",
    };
    log_lines(axes, &drawn).map(Some)
}

fn histogram(name: &str, title: &str, values: &[f64]) -> Result<Option<Chart>> {
    let most = values.iter().copied().fold(0.0, f64::max);
    if values.is_empty() || most <= 0.0 {
        return Ok(None);
    }
    let width = most / BINS as f64;
    let mut counts = [0.0; BINS];
    for value in values {
        counts[((value / width) as usize).min(BINS - 1)] += 1.0;
    }
    let bar = |(idx, &high): (usize, &f64)| {
        let from = idx as f64 * width;
        Bar { from, to: from + width, low: 0.0, high }
    };
    let drawn: Vec<Bar> = counts.iter().enumerate().map(bar).collect();
    bars(Axes { name, title, x: "milliseconds", y: "requests" }, &drawn, &[]).map(Some)
}

/// Tokens per second of generation by batch, a line for each pair of lengths.
fn by_batch(whole: &Value) -> Result<Option<Chart>> {
    let mut drawn: Vec<Line> = Vec::new();
    for figure in array(whole, "figures") {
        let rate = figure["generated_tokens_per_s"]["median"].as_f64();
        let (Some(batch), Some(rate)) = (figure["batch"].as_f64(), rate) else { continue };
        let name = format!("{} + {} tokens", figure["input_tokens"], figure["output_tokens"]);
        match drawn.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push((batch, rate)),
            None => drawn.push(Line { name, points: vec![(batch, rate)], is_joined: true }),
        }
    }
    if drawn.is_empty() {
        return Ok(None);
    }
    let axes = Axes {
        name: "by-batch",
        title: "Generation by batch",
        x: "requests at once",
        y: "tokens per second",
    };
    lines(axes, &drawn, None).map(Some)
}

/// Operations per second over operations per byte, under the ceilings of the machine.
fn roofline(whole: &Value) -> Result<Option<Chart>> {
    let (peak, read) =
        (whole["multiplier"][1].as_f64(), whole["read_bandwidth"]["median"].as_f64());
    let (Some(peak), Some(read)) = (peak, read) else { return Ok(None) };
    let point = |figure: &Value| {
        let per_byte = figure["operations_per_byte"].as_f64().or_else(|| {
            let rows = figure["rows"].as_f64()?;
            Some(figure["operations_per_token"].as_f64()? * rows / figure["bytes"].as_f64()?)
        })?;
        let share = figure["generation_mfu_percent"].as_f64();
        let share = share.or_else(|| figure["arithmetic_percent"].as_f64())?;
        Some((per_byte, peak * share / 100.0)).filter(|(x, y)| *x > 0.0 && *y > 0.0)
    };
    let points: Vec<(f64, f64)> = array(whole, "figures").iter().filter_map(point).collect();
    if points.is_empty() || peak <= 0.0 || read <= 0.0 {
        return Ok(None);
    }
    let ridge = peak / read;
    let reach = |start: f64, of: fn(f64, f64) -> f64| points.iter().fold(start, |x, p| of(x, p.0));
    let (left, right) = (reach(ridge / 4.0, f64::min), reach(ridge * 4.0, f64::max));
    let drawn = [
        Line {
            name: "ceilings".to_owned(),
            points: vec![(left, left * read), (ridge, peak), (right, peak)],
            is_joined: true,
        },
        Line { name: "measured".to_owned(), points, is_joined: false },
    ];
    let axes = Axes {
        name: "roofline",
        title: "Roofline",
        x: "operations per byte",
        y: "operations per second",
    };
    log_lines(axes, &drawn).map(Some)
}

/// Throughput after each technique, on top of those before.
fn waterfall(whole: &Value) -> Result<Option<Chart>> {
    let steps = array(whole, "stacked");
    let mut before = 0.0;
    let (mut drawn, mut words) = (Vec::new(), Vec::new());
    for (idx, step) in steps.iter().enumerate() {
        let Some(rate) = step["tokens_per_s"]["median"].as_f64() else { continue };
        let from = idx as f64 + 0.1;
        drawn.push(Bar { from, to: from + 0.8, low: before, high: rate });
        words.push(step["name"].as_str().unwrap_or_default().to_owned());
        before = rate;
    }
    if drawn.is_empty() {
        return Ok(None);
    }
    let axes = Axes {
        name: "waterfall",
        title: "Tokens per second, one technique after the other",
        x: "",
        y: "tokens per second",
    };
    bars(axes, &drawn, &words).map(Some)
}

/// Speed and size of two models, and their divergence along the text.
fn side_by_side(whole: &Value) -> Result<Vec<Chart>> {
    let rate = |side: &Value, name: &str| side[name]["median"].as_f64();
    let bytes = |side: &Value| Some(side["weight_bytes"].as_f64()? / f64::from(1 << 20));
    let (a, b) = (&whole["a"], &whole["b"]);
    let mut charts = Vec::new();
    for (name, title, unit, figures) in [
        (
            "generation",
            "Generated tokens per second",
            "tokens per second",
            [a, b].map(|side| rate(side, "generated_tokens_per_s")),
        ),
        (
            "prompt",
            "Prompt tokens per second",
            "tokens per second",
            [a, b].map(|side| rate(side, "prompt_tokens_per_s")),
        ),
        ("weights", "Weights in memory", "MiB", [a, b].map(bytes)),
    ] {
        let [Some(of_a), Some(of_b)] = figures else { continue };
        let bar = |from: f64, high| Bar { from, to: from + 0.8, low: 0.0, high };
        let words = ["A", "B"].map(str::to_owned);
        let axes = Axes { name, title, x: "", y: unit };
        charts.push(bars(axes, &[bar(0.1, of_a), bar(1.1, of_b)], &words)?);
    }
    let windows = array(whole, "kl_by_window").iter().zip(1_u32..);
    let points: Vec<(f64, f64)> =
        windows.filter_map(|(kl, at)| Some((f64::from(at), kl.as_f64()?))).collect();
    if !points.is_empty() {
        let line = Line { name: "B from A".to_owned(), points, is_joined: true };
        let axes = Axes {
            name: "divergence",
            title: "KL divergence along the text",
            x: "window",
            y: "nats per token",
        };
        charts.push(lines(axes, &[line], None)?);
    }
    Ok(charts)
}

/// Errors, bits, outliers and times of a quantization, matrix by matrix.
fn quantized(whole: &Value) -> Result<Vec<Chart>> {
    let matrices = array(whole, "matrices");
    let line = |(field, words): &(&str, &str)| {
        let places = matrices.iter().zip(1_u32..);
        let points: Vec<(f64, f64)> =
            places.filter_map(|(of, at)| Some((f64::from(at), of[field].as_f64()?))).collect();
        (!points.is_empty()).then(|| Line { name: (*words).to_owned(), points, is_joined: false })
    };
    let x = "matrix, in the order of the layers";
    let mut charts = Vec::new();
    let mut draw = |[name, title, y]: [&str; 3], fields: &[(&str, &str)]| -> Result<()> {
        let drawn: Vec<Line> = fields.iter().filter_map(line).collect();
        if !drawn.is_empty() {
            charts.push(lines(Axes { name, title, x, y }, &drawn, None)?);
        }
        Ok(())
    };
    draw(
        ["errors", "Error of each matrix's output", "share of the output's squares"],
        &[
            ("error_rounded", "rounded to nearest"),
            ("error_scaled", "once inputs are scaled"),
            ("error", "written"),
        ],
    )?;
    draw(
        ["weight-errors", "Error of each matrix's weights", "share of the weights' squares"],
        &[("weight_error", "written")],
    )?;
    draw(["bits", "Bits per weight", "bits, scales included"], &[("bits", "bits")])?;
    draw(
        ["outliers", "More than six times the usual size", "number"],
        &[("n_outliers", "weights"), ("n_large_inputs", "inputs")],
    )?;
    draw(["times", "Time of each matrix", "seconds"], &[("seconds", "seconds")])?;
    Ok(charts)
}

/// The samples of a figure with their centre and the limits of a chart of individuals.
fn control(number: usize, measure: &Measure) -> Result<Chart> {
    let samples = &measure.samples;
    let n = samples.len() as f64;
    let centre = samples.iter().sum::<f64>() / n;
    let moving = samples.windows(2).map(|pair| (pair[1] - pair[0]).abs()).sum::<f64>() / (n - 1.0);
    // Three deviations; the mean moving range is 1.128 of one.
    let reach = 3.0 * moving / 1.128;
    let level = |name: &str, height: f64| Line {
        name: name.to_owned(),
        points: vec![(1.0, height.max(0.0)), (n, height.max(0.0))],
        is_joined: true,
    };
    let points = samples.iter().zip(1_u32..).map(|(&sample, at)| (f64::from(at), sample)).collect();
    let drawn = [
        Line { name: "samples".to_owned(), points, is_joined: true },
        level("centre", centre),
        level("limits", centre + reach),
        level("", centre - reach),
    ];
    let name = format!("control-{number}");
    let title = format!("{}, sample by sample", measure.name);
    lines(Axes { name: &name, title: &title, x: "sample", y: &measure.unit }, &drawn, None)
}
