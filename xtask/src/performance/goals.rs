//! The goals of each instruction set beside what was measured.

use std::fmt::Write as _;

use super::tables::{self, Spread};
use super::turns::{Kind, Turns};

/// A figure that has a goal.
#[derive(Clone, Copy)]
enum Goal {
    /// Decoding one sequence, in percent of the read bandwidth.
    Bandwidth,
    /// Products with so many rows of inputs, in percent of the peak.
    Products(u64),
    /// A step of six rows, in steps of one.
    SixRows,
    /// The long prompt, in percent of the speed at 512 tokens.
    LongPrompt,
    /// A speed, in those of the best other engine.
    Beside(&'static str),
}

const GOALS: [Goal; 8] = [
    Goal::Bandwidth,
    Goal::Products(8),
    Goal::Products(32),
    Goal::Products(512),
    Goal::SixRows,
    Goal::LongPrompt,
    Goal::Beside("prefill 512"),
    Goal::Beside("decode batch 32"),
];

/// The good side of a bound.
#[derive(Clone, Copy)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Goal {
    fn name(self) -> String {
        match self {
            Self::Bandwidth => "decoding, share of bandwidth".to_owned(),
            Self::Products(rows) => format!("products, M = {rows}"),
            Self::SixRows => "a step of six rows, in steps of one".to_owned(),
            Self::LongPrompt => "the long prompt, share of the speed at 512 tokens".to_owned(),
            Self::Beside(figure) => format!("{figure}, times the best other engine"),
        }
    }

    /// The bound for weights of a layout; `None` where no goal was set.
    fn bound(self, layout: &str, kernels: &str) -> Option<Bound> {
        let has_vnni = kernels == "avx512vnni";
        let bound = match (self, layout) {
            (Self::Bandwidth, "q8") => Bound::AtLeast(88.0),
            (Self::Bandwidth, "q4") => Bound::AtLeast(82.0),
            (Self::Bandwidth, "q4k") => Bound::AtLeast(80.0),
            (Self::Bandwidth, _) => return None,
            // Weights of 16 and 32 bits, and tiles, have other peaks.
            (Self::Products(_), layout) if layout.ends_with("16") || layout.ends_with("32") => {
                return None;
            }
            (Self::Products(_), _) if kernels == "amx" => return None,
            (Self::Products(8), _) => Bound::AtLeast(if has_vnni { 60.0 } else { 55.0 }),
            (Self::Products(32), _) => Bound::AtLeast(if has_vnni { 70.0 } else { 65.0 }),
            (Self::Products(_), _) => Bound::AtLeast(if has_vnni { 78.0 } else { 70.0 }),
            (Self::SixRows, _) => Bound::AtMost(1.5),
            (Self::LongPrompt, _) => Bound::AtLeast(75.0),
            (Self::Beside(_), _) => Bound::AtLeast(1.15),
        };
        Some(bound)
    }

    /// The measured figures, one for each round.
    fn rounds(self, turns: &Turns, format: &str, kernels: &str) -> Vec<f64> {
        match self {
            Self::Bandwidth => {
                tables::shares(turns, format, kernels, "decode batch 1", "bandwidth_percent")
            }
            Self::Products(rows) => {
                tables::product(turns, format, kernels, rows, "arithmetic_percent")
            }
            Self::SixRows => tables::verification(turns, format, kernels),
            Self::LongPrompt => tables::long_prompts(turns, format, kernels),
            Self::Beside(figure) => beside_best(turns, format, kernels, figure),
        }
    }

    fn show(self, value: f64) -> String {
        match self {
            Self::Bandwidth | Self::Products(_) | Self::LongPrompt => format!("{value:.0} %"),
            Self::SixRows | Self::Beside(_) => format!("{value:.2}"),
        }
    }

    fn cell(self, turns: &Turns, format: &str, kernels: &str) -> String {
        let Some(spread) = Spread::of(self.rounds(turns, format, kernels)) else {
            return "-".to_owned();
        };
        let value = self.show(spread.median);
        let (holds, words, bound) = match self.bound(&tables::layout(format), kernels) {
            None => return value,
            Some(Bound::AtLeast(bound)) => (spread.median >= bound, "at least", bound),
            Some(Bound::AtMost(bound)) => (spread.median <= bound, "at most", bound),
        };
        let value = if holds { value } else { format!("**{value}**") };
        format!("{value} ({words} {})", self.show(bound))
    }
}

/// The table of goals, with those that are missed in bold.
pub(super) fn table(turns: &Turns) -> String {
    let all = turns.names("kernels");
    let mut text = String::from(
        "\n### The goals\n\nBold where a goal is missed; in brackets the goal. Shares of products are of the \
         peak of the same instructions.\n\n| goal |",
    );
    all.iter().for_each(|kernels| _ = write!(text, " `{kernels}` |"));
    let _ = writeln!(text, "\n|---|{}", "---|".repeat(all.len()));
    for format in turns.names("formats") {
        for goal in GOALS {
            let cells: Vec<String> =
                all.iter().map(|kernels| goal.cell(turns, format, kernels)).collect();
            if cells.iter().any(|cell| cell != "-") {
                let name = format!("{}: {}", tables::layout(format), goal.name());
                let _ = writeln!(text, "| {name} | {} |", cells.join(" | "));
            }
        }
    }
    text
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
