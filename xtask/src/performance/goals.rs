//! The goals of each instruction set beside what was measured.

use std::fmt::Write as _;

use super::tables::{self, Spread};
use super::turns::{Kind, Turns};

/// Which side of the bound is good.
#[derive(Clone, Copy)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Bound {
    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtLeast(bound) => value >= bound,
            Self::AtMost(bound) => value <= bound,
        }
    }
}

/// A line of the table: a name, and for each instruction set the bound, if there is one, and the rounds.
struct Goal<'a> {
    name: String,
    bound: Box<dyn Fn(&str) -> Option<Bound> + 'a>,
    rounds: Box<dyn Fn(&str) -> Vec<f64> + 'a>,
    unit: &'static str,
}

/// The table of goals, with those that are missed in bold.
pub(super) fn table(turns: &Turns) -> String {
    let kernels = turns.names("kernels");
    let mut text = String::from(
        "\n### The goals\n\nBold where a goal is missed; in brackets the goal. Shares of products are of the peak of \
         the same instructions.\n\n| goal |",
    );
    kernels.iter().for_each(|kernels| _ = write!(text, " `{kernels}` |"));
    let _ = writeln!(text, "\n|---|{}", "---|".repeat(kernels.len()));
    for goal in goals(turns) {
        let cells: Vec<String> = kernels.iter().map(|kernels| cell(&goal, kernels)).collect();
        if cells.iter().any(|cell| cell != "-") {
            let _ = writeln!(text, "| {} | {} |", goal.name, cells.join(" | "));
        }
    }
    text
}

fn cell(goal: &Goal<'_>, kernels: &str) -> String {
    let Some(spread) = Spread::of((goal.rounds)(kernels)) else { return "-".to_owned() };
    let show = |value: f64| {
        if goal.unit == " %" { format!("{value:.0} %") } else { format!("{value:.2}{}", goal.unit) }
    };
    let value = show(spread.median);
    let Some(bound) = (goal.bound)(kernels) else { return value };
    let value = if bound.holds(spread.median) { value } else { format!("**{value}**") };
    match bound {
        Bound::AtLeast(bound) => format!("{value} (at least {})", show(bound)),
        Bound::AtMost(bound) => format!("{value} (at most {})", show(bound)),
    }
}

fn goals(turns: &Turns) -> Vec<Goal<'_>> {
    let mut goals = Vec::new();
    for format in turns.names("formats") {
        let name = tables::layout(format);
        let bandwidth = match name.as_str() {
            "q8" => Some(88.0),
            "q4" => Some(82.0),
            "q4k" => Some(80.0),
            _ => None,
        };
        if let Some(bandwidth) = bandwidth {
            goals.push(Goal {
                name: format!("{name}: decoding, share of bandwidth"),
                bound: Box::new(move |_| Some(Bound::AtLeast(bandwidth))),
                rounds: Box::new(move |kernels| {
                    tables::shares(turns, format, kernels, "decode batch 1", "bandwidth_percent")
                }),
                unit: " %",
            });
        }
        // Weights of 16 bits are multiplied by other instructions, for which no goal was set.
        for (rows, with_vnni, without) in [(8, 60.0, 55.0), (32, 70.0, 65.0), (512, 78.0, 70.0)] {
            if name.ends_with("16") || name.ends_with("32") {
                continue;
            }
            goals.push(Goal {
                name: format!("{name}: products, M = {rows}"),
                // No goal was set for the peak of tiles.
                bound: Box::new(move |kernels| match kernels {
                    "amx" => None,
                    "avx512vnni" => Some(Bound::AtLeast(with_vnni)),
                    _ => Some(Bound::AtLeast(without)),
                }),
                rounds: Box::new(move |kernels| {
                    tables::product(turns, format, kernels, rows, "arithmetic_percent")
                }),
                unit: " %",
            });
        }
        goals.push(Goal {
            name: format!("{name}: a step of six rows, in steps of one"),
            bound: Box::new(|_| Some(Bound::AtMost(1.5))),
            rounds: Box::new(move |kernels| tables::verification(turns, format, kernels)),
            unit: "",
        });
        goals.push(Goal {
            name: format!("{name}: the long prompt, share of the speed at 512 tokens"),
            bound: Box::new(|_| Some(Bound::AtLeast(75.0))),
            rounds: Box::new(move |kernels| {
                let ratios = tables::long_prompts(turns, format, kernels);
                ratios.into_iter().map(|ratio| 100.0 * ratio).collect()
            }),
            unit: " %",
        });
        for figure in ["prefill 512", "decode batch 32"] {
            goals.push(Goal {
                name: format!("{name}: {figure}, times the best other engine"),
                bound: Box::new(|_| Some(Bound::AtLeast(1.15))),
                rounds: Box::new(move |kernels| beside_best(turns, format, kernels, figure)),
                unit: "",
            });
        }
    }
    goals
}

/// The ratios to the engine beside which Pelton does worst.
fn beside_best(turns: &Turns, format: &str, kernels: &str, figure: &str) -> Vec<f64> {
    let reports = turns.rounds(format, kernels, Kind::Peers);
    let engines = reports.first().and_then(|report| report["versions"].as_object());
    let ratios = engines
        .into_iter()
        .flatten()
        .map(|(engine, _)| tables::beside(turns, format, kernels, figure, engine));
    let median = |ratios: &Vec<f64>| Spread::of(ratios.iter().copied()).map(|spread| spread.median);
    ratios
        .filter(|ratios| !ratios.is_empty())
        .min_by(|a, b| median(a).partial_cmp(&median(b)).expect("invariant: speeds are numbers"))
        .unwrap_or_default()
}
