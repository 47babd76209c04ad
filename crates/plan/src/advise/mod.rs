//! The techniques that help a workload on a machine, in order, and the gain of each.
//!
//! ```text
//! goal, limits, workload ─▶ a plain server: weights as given, bf16 keys and values, one request
//!                                   │  the technique that helps the goal most, then the next, ...
//!                                   ▼
//!                                steps, each with reason, expected gain and its range
//!                                the rest, each with the reason why it is left out
//! ```
//!
//! A step is taken on top of those before, because gains do not multiply: each is the ratio of two
//! plans that differ in it alone. A technique is left out where it gains less than 2 %, where it
//! costs more quality than allowed, or where its memory is not there.
//!
//! **What the numbers are.** Times are those of [`plan`](crate::plan()); its error is the range of
//! a gain. Speculation gains (1 - a^(k+1)) / (1 - a) tokens per step of k drafts (Leviathan
//! 2211.17192) against the planned cost of the wider step; how often drafts are right (a) is a
//! guess of the scenario, so the range is that of 0.15 more or less. Losses of weights are
//! published perplexities of one model (`losses.json`); `pelton eval` measures those of your model.

mod phases;
mod relief;
mod scenario;
mod state;
mod words;

use pelton_model::ModelOutline;
use serde::Serialize;

use crate::hardware::Hardware;
use crate::weights::Weights;
pub use phases::Phase;
pub use relief::Relief;
pub use scenario::{Goal, Scenario, scenarios};
use state::{Bench, State, Technique};

/// Least gain of a technique that is taken.
const LEAST_GAIN: f64 = 1.02;
/// Relative error of a gain by a measured machine, and by a datasheet.
const ERRORS: (f64, f64) = (0.15, 0.35);

/// A workload, a machine and its limits.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// The machine.
    pub hardware: &'a Hardware,
    /// Its memory, in bytes.
    pub memory_bytes: u64,
    /// How the weights are stored now.
    pub weights: Weights,
    /// The workload.
    pub scenario: &'a Scenario,
    /// The goal; that of the scenario or another.
    pub goal: Goal,
    /// Largest loss of perplexity, in per cent.
    pub loss_percent: f64,
    /// Price of the machine for an hour.
    pub price_per_hour: Option<f64>,
    /// Tokens of a block of keys and values.
    pub block_tokens: usize,
    /// Most tokens of one step.
    pub step_tokens: usize,
}

/// The techniques that help, in order.
#[derive(Clone, Debug, Serialize)]
pub struct Advice {
    /// The goal.
    pub goal: Goal,
    /// The plain server, in figures.
    pub before: Figures,
    /// The advised server.
    pub after: Figures,
    /// The techniques that are taken, in order.
    pub steps: Vec<Step>,
    /// The techniques that are not, each with its reason.
    pub left_out: Vec<LeftOut>,
    /// Hard constraints, and whether the advised server keeps them.
    pub checks: Vec<Check>,
    /// Constraints that no choice can break, in words.
    pub kept: Vec<String>,
    /// The single changes with which all checks hold, where one does not.
    pub reliefs: Vec<Relief>,
    /// The steps as work, each measured before the next.
    pub phases: Vec<Phase>,
    /// Settings of the advised server.
    pub settings: Settings,
}

/// Figures of a server.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// Memory, in bytes.
    pub total_bytes: u64,
    /// Time to the first token.
    pub ttft_s: f64,
    /// Time per token.
    pub tpot_s: f64,
    /// Time of a whole answer.
    pub answer_s: f64,
    /// Tokens of answers per second, prompts included.
    pub output_tokens_per_s: f64,
    /// Price of a million tokens of answers, prompts included; absent without a price per hour.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_per_million: Option<f64>,
}

/// A technique that is taken.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// Its name.
    pub technique: &'static str,
    /// The setting, in words.
    pub change: String,
    /// The same as settings of a server's file, `KEY=VALUE`; empty where weights are to be
    /// converted.
    pub settings: Vec<String>,
    /// The reason, in figures.
    pub reason: String,
    /// Expected gain of the goal, on top of the steps before.
    pub gain: f64,
    /// Range of the gain.
    pub range: (f64, f64),
    /// Loss of quality, where there is one.
    pub loss: Option<String>,
}

/// A technique that is not taken.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LeftOut {
    /// Its name.
    pub technique: &'static str,
    /// The reason.
    pub reason: String,
}

/// A hard constraint.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    /// The constraint, in words.
    pub constraint: String,
    /// Whether it is kept.
    pub holds: bool,
}

/// Settings of the advised server.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Settings {
    /// Format of the weights, where they are to be converted.
    pub weights: Option<String>,
    /// Storage of keys and values.
    pub kv_dtype: &'static str,
    /// Most requests at once.
    pub max_running: usize,
    /// Most tokens of one request.
    pub max_context: usize,
    /// Whether prompts share their beginnings.
    pub prefix_cache: bool,
    /// Most drafted tokens; none without speculation.
    pub drafts: Option<usize>,
}

/// Advice for a model; `None` where nothing is known about the speed of the machine.
///
/// # Panics
///
/// When the model has no layer, or a number of the scenario that has to be at least 1 is 0.
pub fn advise(model: &ModelOutline, wish: &Wish<'_>) -> Option<Advice> {
    if !wish.hardware.has_speed() {
        return None;
    }
    let mut advice = search(model, wish);
    advice.reliefs = relief::reliefs(model, wish, &advice);
    Some(advice)
}

/// The steps for a machine of known speed, without the changes that would keep a broken constraint.
fn search(model: &ModelOutline, wish: &Wish<'_>) -> Advice {
    let bench = Bench::new(model, wish);
    let mut state = State::plain(wish);
    let before = bench.figures(&state);
    let mut left: Vec<Technique> = Technique::ALL.to_vec();
    let mut steps = Vec::new();
    loop {
        let base = bench.score(&state);
        let candidates = left.iter().enumerate().filter_map(|(at, &technique)| {
            let next = bench.best(&state, technique)?;
            let gain = bench.score(&next) / base;
            // A step that is needed to fit comes before one that is fast.
            let is_needed =
                bench.missing(&state) > 0 && bench.missing(&next) < bench.missing(&state);
            (gain >= LEAST_GAIN || is_needed).then_some((is_needed, gain, at, next))
        });
        let best = candidates.max_by(|a, b| (a.0, a.1).partial_cmp(&(b.0, b.1)).expect("numbers"));
        let Some((is_needed, gain, at, next)) = best else { break };
        let technique = left.remove(at);
        steps.push(step(&bench, technique, (&state, &next), gain, is_needed));
        state = next;
    }
    let left_out = left.into_iter().map(|technique| LeftOut {
        technique: technique.name(),
        reason: bench.why_not(&state, technique),
    });
    Advice {
        goal: wish.goal,
        before,
        after: bench.figures(&state),
        left_out: left_out.collect(),
        checks: bench.checks(&state),
        kept: bench.kept(&state),
        reliefs: Vec::new(),
        phases: phases::phases(wish.scenario, &steps),
        settings: bench.settings(&state),
        steps,
    }
}

/// Requests at the same time where so many arrive per second: by Little's law the rate times the time
/// of a request, which grows with their number. That is the least number with which a server with
/// plain weights ends as many per second as arrive; `most` where it falls behind with each number.
/// `None` where nothing is known about the speed of the machine.
///
/// # Panics
///
/// As of [`advise`].
pub fn concurrent(
    model: &ModelOutline,
    wish: &Wish<'_>,
    arrivals_per_s: f64,
    most: usize,
) -> Option<usize> {
    if !wish.hardware.has_speed() {
        return None;
    }
    let bench = Bench::new(model, wish);
    let keeps_up = |n: usize| {
        let figures = bench.figures(&State::of_batch(wish, n));
        figures.output_tokens_per_s / wish.scenario.output_tokens as f64 >= arrivals_per_s
    };
    let doubled = std::iter::successors(Some(1), |n: &usize| n.checked_mul(2));
    let Some(high) = doubled.take_while(|&n| n < most).find(|&n| keeps_up(n)) else {
        return Some(most);
    };
    // A server with more places answers more per second.
    let (mut low, mut high) = (high / 2, high);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        *(if keeps_up(middle) { &mut high } else { &mut low }) = middle;
    }
    Some(high)
}

fn step(
    bench: &Bench<'_>,
    technique: Technique,
    (from, to): (&State, &State),
    gain: f64,
    is_needed: bool,
) -> Step {
    let wish = bench.wish;
    let error = if wish.hardware.products.is_empty() { ERRORS.1 } else { ERRORS.0 };
    let (mut low, mut high) =
        (1.0 + (gain - 1.0) * (1.0 - error), 1.0 + (gain - 1.0) * (1.0 + error));
    if low > high {
        // A step that saves memory may cost time.
        (low, high) = (high, low);
    }
    if technique == Technique::Speculation {
        let shifted = |by: f64| bench.score(&to.with_acceptance(by)) / bench.score(from);
        (low, high) = (shifted(-0.15), shifted(0.15));
    }
    if wish.goal == Goal::Memory {
        // Bytes are those that are allocated.
        (low, high) = (gain, gain);
    }
    let reason = match is_needed {
        true => format!("without it memory is short; {}", bench.reason(technique, from, to)),
        false => bench.reason(technique, from, to),
    };
    Step {
        technique: technique.name(),
        change: bench.change(technique, to),
        settings: bench.keys(technique, to),
        reason,
        gain,
        range: (low, high),
        loss: bench.loss(technique, to),
    }
}

#[cfg(test)]
mod tests;
