//! The measured part of the page, from the reports of all turns.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::Value;

use super::goals;
use super::turns::{Kind, Turns};

/// Rows of inputs of the products that the page shows.
const ROWS: [u64; 5] = [1, 8, 32, 64, 512];

/// The figures that other engines have, too.
const SHARED: [&str; 4] = ["prefill 512", "decode batch 1", "decode batch 8", "decode batch 32"];

/// The packed layout of a weight format, by the name that `pelton bench kernels` gives it.
pub(super) fn layout(format: &str) -> String {
    format.trim_end_matches("_0").replace("_k", "k")
}

/// Everything, as Markdown.
pub(super) fn all(turns: &Turns) -> String {
    let mut text = introduction(turns);
    for kernels in turns.names("kernels") {
        text += &format!("\n### `{kernels}`\n\n{}\n", ceilings(turns, kernels));
        text += &models(turns, kernels);
        text += &products(turns, kernels);
        text += &peers(turns, kernels);
    }
    text + &goals::table(turns)
}

fn introduction(turns: &Turns) -> String {
    let header = turns.header();
    let n_noisy =
        turns.reports().filter(|report| report["report"]["noise"]["is_noisy"] == true).count();
    let n_told = turns.reports().filter(|report| report["report"]["noise"].is_object()).count();
    let text = |value: &Value| value.as_str().unwrap_or("unknown").to_owned();
    format!(
        "Random weights in the shape of {}. {}, {} threads; commit {}. Medians of {} rounds (lowest to \
         highest), in which the instruction sets take turns; other programs took more than their share of the \
         processors in {n_noisy} of {n_told} processes.\n",
        text(&header["same"]["shape"]),
        text(&header["same"]["cpu"]),
        header["same"]["threads"],
        text(&header["commit"]),
        turns.n_rounds(),
    )
}

/// The limits of the machine, as the processes that measured products found them.
fn ceilings(turns: &Turns, kernels: &str) -> String {
    let formats = turns.names("formats");
    let reports = formats.iter().flat_map(|format| turns.rounds(format, kernels, Kind::Products));
    let all: Vec<&Value> =
        reports.filter_map(|report| report["ceilings"].as_array()?.last()).collect();
    let limit = |key: &str| Spread::of(all.iter().filter_map(|ceilings| ceilings[key].as_f64()));
    let mut parts = Vec::new();
    for (key, name, unit) in [
        ("int8_ops_per_s", "int8", "GOP/s"),
        ("bf16_ops_per_s", "bf16", "GFLOP/s"),
        ("f16_ops_per_s", "f16", "GFLOP/s"),
        ("f32_ops_per_s", "f32", "GFLOP/s"),
        ("read_bytes_per_s", "reads", "GB/s"),
    ] {
        if let Some(spread) = limit(key) {
            parts.push(format!("{name} {} {unit}", spread.scaled(1e-9)));
        }
    }
    format!("Ceilings: {}.", parts.join(", "))
}

fn models(turns: &Turns, kernels: &str) -> String {
    let long = turns.header()["same"]["long"].as_u64().filter(|&long| long > 0);
    let mut text = String::from(
        "\n| weights | prefill 512 | of the peak | decode batch 1 | of bandwidth | batch 8 | batch 32 \
         | context 4096 | 6 rows, in steps of one |",
    );
    text += &long.map_or(String::new(), |long| format!(" prefill {long} | of 512 |"));
    text += "\n|---|---|---|---|---|---|---|---|---|";
    text += if long.is_some() { "---|---|\n" } else { "\n" };
    for format in turns.names("formats") {
        let reports = turns.rounds(format, kernels, Kind::Model);
        let rate = |name: &str| {
            show(Spread::of(reports.iter().filter_map(|report| rate(report, name))), 1.0)
        };
        let share = |name: &str, of: &str| percent(shares(turns, format, kernels, name, of));
        let _ = write!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            weights(format, reports.first()),
            rate("prefill 512"),
            share("prefill 512", "arithmetic_percent"),
            rate("decode batch 1"),
            share("decode batch 1", "bandwidth_percent"),
            rate("decode batch 8"),
            rate("decode batch 32"),
            rate("decode context 4096"),
            Spread::of(verification(turns, format, kernels))
                .map_or("-".into(), |spread| format!("{:.2}", spread.median)),
        );
        if let Some(long) = long {
            let rounds = turns.rounds(format, kernels, Kind::Long);
            let name = format!("prefill {long}");
            let rates = rounds.iter().filter_map(|report| self::rate(report, &name));
            let ratio = percent(long_prompts(turns, format, kernels));
            let _ = write!(text, " {} | {ratio} |", show(Spread::of(rates), 1.0));
        }
        text.push('\n');
    }
    text
}

/// A format, with the layouts that its matrices have besides, where some of them do not fit it.
fn weights(format: &str, report: Option<&&Value>) -> String {
    let parts = report.and_then(|report| report["layouts"].as_array()).cloned().unwrap_or_default();
    let bytes = |part: &Value| part[1].as_f64().unwrap_or_default();
    let all: f64 = parts.iter().map(bytes).sum();
    let name = layout(format);
    let others = parts.iter().filter(|part| part[0] != name.as_str());
    let others: Vec<String> = others
        .map(|part| {
            format!("{:.0} % {}", 100.0 * bytes(part) / all, part[0].as_str().unwrap_or("?"))
        })
        .collect();
    if others.is_empty() { name } else { format!("{name}, of which {}", others.join(", ")) }
}

fn products(turns: &Turns, kernels: &str) -> String {
    let mut text = String::from("\n| products |");
    for rows in ROWS {
        let _ = write!(text, " M = {rows} |");
    }
    let _ = writeln!(text, "\n|---|{}", "---|".repeat(ROWS.len()));
    for format in turns.names("formats") {
        let _ = write!(text, "| {} |", layout(format));
        for rows in ROWS {
            let speeds = product(turns, format, kernels, rows, "ops_per_s");
            let _ = write!(text, " {}", show(Spread::of(speeds), 1e-9));
            // One row of inputs is bound by memory.
            if rows > 1 {
                let shares = product(turns, format, kernels, rows, "arithmetic_percent");
                let _ = write!(text, ", {}", percent(shares));
            }
            text += " |";
        }
        text.push('\n');
    }
    text
}

/// The engines that were measured beside, with their ratios.
fn peers(turns: &Turns, kernels: &str) -> String {
    let mut engines = BTreeSet::new();
    let mut notes = BTreeSet::new();
    let mut lines = String::new();
    for format in turns.names("formats") {
        for report in turns.rounds(format, kernels, Kind::Peers) {
            engines.extend(
                report["versions"].as_object().into_iter().flatten().map(|(name, _)| name.clone()),
            );
        }
        for name in SHARED {
            let own = turns.rounds(format, kernels, Kind::Model);
            let own = Spread::of(own.iter().filter_map(|report| rate(report, name)));
            let _ = write!(lines, "| {} | {name} | {} |", layout(format), show(own, 1.0));
            for engine in &engines {
                let rates = turns.rounds(format, kernels, Kind::Peers);
                notes.extend(rates.iter().filter_map(|report| {
                    Some(format!(
                        "{engine}: {}.",
                        report["figures"][name][engine]["error"].as_str()?
                    ))
                }));
                let rates = rates
                    .iter()
                    .filter_map(|report| report["figures"][name][engine]["median"].as_f64());
                let ratio = Spread::of(beside(turns, format, kernels, name, engine));
                let ratio =
                    ratio.map(|spread| format!(" [{:.2}]", spread.median)).unwrap_or_default();
                let _ = write!(lines, " {}{ratio} |", show(Spread::of(rates), 1.0));
            }
            lines.push('\n');
        }
    }
    if engines.is_empty() {
        return String::new();
    }
    let names: String = engines.iter().map(|engine| format!(" {engine} |")).collect();
    let columns = "---|".repeat(3 + engines.len());
    let mut text = format!("\n| weights | tokens/s | Pelton |{names}\n|{columns}\n{lines}");
    for note in notes {
        let _ = write!(text, "\n{note}\n");
    }
    text
}

/// Tokens per second of Pelton over those of another engine, in each round that has both.
pub(super) fn beside(
    turns: &Turns,
    format: &str,
    kernels: &str,
    name: &str,
    engine: &str,
) -> Vec<f64> {
    let ratio = |(own, other): (&Value, &Value)| {
        Some(rate(own, name)? / other["figures"][name][engine]["median"].as_f64()?)
    };
    let pairs = turns.pairs(format, kernels, [Kind::Model, Kind::Peers]);
    pairs.into_iter().filter_map(ratio).collect()
}

/// The time of a step of six rows over that of one, in each round.
pub(super) fn verification(turns: &Turns, format: &str, kernels: &str) -> Vec<f64> {
    let seconds = |report: &Value, name: &str| figure(report, name)?["step_s"]["median"].as_f64();
    let ratio = |report: &Value| {
        Some(seconds(report, "verify rows 6")? / seconds(report, "verify rows 1")?)
    };
    turns.rounds(format, kernels, Kind::Model).into_iter().filter_map(ratio).collect()
}

/// The speed of the long prompt in percent of that of 512 tokens, in each round.
pub(super) fn long_prompts(turns: &Turns, format: &str, kernels: &str) -> Vec<f64> {
    let name = format!("prefill {}", turns.header()["same"]["long"]);
    let ratio = |(long, short)| Some(100.0 * rate(long, &name)? / rate(short, "prefill 512")?);
    let pairs = turns.pairs(format, kernels, [Kind::Long, Kind::Model]);
    pairs.into_iter().filter_map(ratio).collect()
}

/// A field of products with so many rows of inputs, in each round. A report may have other layouts
/// besides, whose names contain the one that was asked for.
pub(super) fn product(
    turns: &Turns,
    format: &str,
    kernels: &str,
    rows: u64,
    key: &str,
) -> Vec<f64> {
    let name = layout(format);
    let field = |report: &Value| {
        let mut all = report["rows"].as_array()?.iter();
        all.find(|row| row["rows"] == rows && row["variant"] == name.as_str())?[key].as_f64()
    };
    turns.rounds(format, kernels, Kind::Products).into_iter().filter_map(field).collect()
}

/// A share that a figure of a model has of a ceiling, in each round.
pub(super) fn shares(
    turns: &Turns,
    format: &str,
    kernels: &str,
    name: &str,
    key: &str,
) -> Vec<f64> {
    let share = |report: &Value| figure(report, name)?[key].as_f64();
    turns.rounds(format, kernels, Kind::Model).into_iter().filter_map(share).collect()
}

fn figure<'a>(report: &'a Value, name: &str) -> Option<&'a Value> {
    report["figures"].as_array()?.iter().find(|figure| figure["name"] == name)
}

fn rate(report: &Value, name: &str) -> Option<f64> {
    figure(report, name)?["tokens_per_s"]["median"].as_f64()
}

/// The median of shares.
fn percent(shares: Vec<f64>) -> String {
    Spread::of(shares).map_or("-".to_owned(), |spread| format!("{:.0} %", spread.median))
}

fn show(spread: Option<Spread>, scale: f64) -> String {
    spread.map_or("-".to_owned(), |spread| spread.scaled(scale))
}

/// The median of some numbers, and the ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spread {
    pub(super) median: f64,
    lowest: f64,
    highest: f64,
}

impl Spread {
    /// `None` without a number.
    pub(super) fn of(numbers: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut numbers: Vec<f64> = numbers.into_iter().collect();
        numbers.sort_by(f64::total_cmp);
        let (&lowest, &highest) = (numbers.first()?, numbers.last()?);
        let (low, high) = (numbers[(numbers.len() - 1) / 2], numbers[numbers.len() / 2]);
        Some(Self { median: (low + high) / 2.0, lowest, highest })
    }

    /// Such as `1,343 (1,310 to 1,360)`.
    fn scaled(&self, scale: f64) -> String {
        let [median, lowest, highest] =
            [self.median, self.lowest, self.highest].map(|n| number(n * scale));
        if lowest == highest { median } else { format!("{median} ({lowest} to {highest})") }
    }
}

/// Three digits or all before the point, in groups.
fn number(n: f64) -> String {
    if n < 10.0 {
        return format!("{n:.2}");
    }
    if n < 100.0 {
        return format!("{n:.1}");
    }
    let digits = format!("{n:.0}");
    let mut text = String::new();
    for (idx, digit) in digits.chars().enumerate() {
        if idx > 0 && (digits.len() - idx).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::performance::turns::Turn;
    use serde_json::json;

    fn figure(name: &str, tokens_per_s: f64, step_s: f64) -> Value {
        json!({
            "name": name,
            "tokens_per_s": { "median": tokens_per_s },
            "step_s": { "median": step_s },
            "arithmetic_percent": tokens_per_s / 20.0,
            "bandwidth_percent": 90.0,
        })
    }

    /// The reports of one round on a machine that is `times` as fast as in the first.
    fn reports(times: f64) -> [(Kind, Value); 4] {
        let row = |variant: &str, rows: u64| {
            let ops_per_s = times * 1e9 * rows as f64;
            json!({
                "variant": variant, "rows": rows, "ops_per_s": ops_per_s, "arithmetic_percent": 61.0,
            })
        };
        let other = |rows| json!({ "variant": "q4k", "rows": rows, "ops_per_s": 1.0 });
        let rows: Vec<Value> =
            ROWS.iter().flat_map(|&rows| [other(rows), row("q4", rows)]).collect();
        let mut model = json!({
            "figures": [
                figure("prefill 512", 1000.0 * times, 0.5),
                figure("decode batch 1", 100.0 * times, 0.01),
                figure("decode batch 32", 900.0 * times, 0.03),
                figure("verify rows 1", 100.0, 0.01),
                figure("verify rows 6", 400.0, 0.016),
            ],
            "layouts": [["q8", 25], ["q4", 75]],
        });
        model["report"]["noise"]["is_noisy"] = json!(times > 1.0);
        let peers = json!({
            "versions": { "llama.cpp": "1", "openvino": "2" },
            "figures": {
                "prefill 512": { "llama.cpp": { "median": 500.0 * times }, "openvino": { "median": 800.0 * times } },
                "decode batch 1": { "llama.cpp": { "error": "built without AVX2" } },
            },
        });
        let products = json!({
            "rows": rows,
            "ceilings": [{ "int8_ops_per_s": 1.0 }, { "int8_ops_per_s": 2e12, "read_bytes_per_s": 5.2e10 }],
        });
        let long = json!({ "figures": [figure("prefill 8192", 500.0 * times, 16.0)] });
        [(Kind::Model, model), (Kind::Peers, peers), (Kind::Products, products), (Kind::Long, long)]
    }

    #[test]
    fn the_page_shows_medians_ratios_within_a_round_and_missed_goals() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let header = json!({
            "same": { "cpu": "A processor", "threads": 2, "shape": "qwen-0.5b", "long": 8192 },
            "commit": "abc", "rounds": 3, "formats": ["q4_0"], "kernels": ["avx2", "avx512vnni"],
        });
        let mut turns = Turns::open(&folder.path().join("turns"), &header, false).expect("begins");
        for (round, times) in [(1, 1.0), (2, 1.1), (3, 0.5)] {
            for (kind, report) in reports(times) {
                // Ratios of the other rounds are as they would be with it.
                if (round, kind) == (1, Kind::Long) {
                    continue;
                }
                let (format, kernels) = ("q4_0".to_owned(), "avx2".to_owned());
                turns.add(Turn { round, format, kernels, kind }, report).expect("writes");
            }
        }
        let text = all(&turns);
        for line in [
            "Random weights in the shape of qwen-0.5b.",
            "A processor, 2 threads; commit abc. Medians of 3 rounds",
            "took more than their share of the processors in 1 of 3 processes",
            "### `avx2`\n\nCeilings: int8 2,000 GOP/s, reads 52.0 GB/s.",
            "| q4, of which 25 % q8 | 1,000 (500 to 1,100) | 50 % | 100 (50.0 to 110) | 90 % | - | 900 (450 to 990) | - \
             | 1.60 | 400 (250 to 550) | 50 % |",
            "| q4 | 1.00 (0.50 to 1.10) | 8.00 (4.00 to 8.80), 61 % | 32.0 (16.0 to 35.2), 61 % |",
            "| weights | tokens/s | Pelton | llama.cpp | openvino |",
            "| q4 | prefill 512 | 1,000 (500 to 1,100) | 500 (250 to 550) [2.00] | 800 (400 to 880) [1.25] |",
            "| q4 | decode batch 1 | 100 (50.0 to 110) | - | - |",
            "\nllama.cpp: built without AVX2.\n",
            // Nothing was measured there, which the page shows rather than hides.
            "### `avx512vnni`\n\nCeilings: .",
            "| goal | `avx2` | `avx512vnni` |",
            "| q4: decoding, share of bandwidth | 90 % (at least 82 %) | - |",
            "| q4: products, M = 32 | **61 %** (at least 65 %) | - |",
            "| q4: products, M = 8 | 61 % (at least 55 %) | - |",
            "| q4: a step of six rows, in steps of one | **1.60** (at most 1.50) | - |",
            "| q4: the long prompt, share of the speed at 512 tokens | **50 %** (at least 75 %) | - |",
            "| q4: prefill 512, times the best other engine | 1.25 (at least 1.15) | - |",
        ] {
            assert!(text.contains(line), "no `{line}` in\n{text}");
        }
        assert!(!text.contains("decode batch 32, times"), "no engine measured it:\n{text}");
    }

    #[test]
    fn numbers_are_readable() {
        let shown = [1.234, 12.34, 123.4, 1234.4, 1_234_567.0].map(number);
        assert_eq!(shown, ["1.23", "12.3", "123", "1,234", "1,234,567"]);
        let even = Spread::of([4.0, 1.0, 3.0, 2.0]).expect("numbers");
        assert_eq!(even.scaled(1.0), "2.50 (1.00 to 4.00)");
        assert!(Spread::of([]).is_none());
    }
}
