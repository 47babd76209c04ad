//! How much drafting gains on given texts, next to plain decoding.
//!
//! ```text
//! load once, with every method
//! round 0 (not counted): prompts into the prefix cache, steps priced, drafts' times learned
//! for each round, batch size and kind of text
//!     plain │ method │ method │ ...      the same requests, each saying who guesses for it
//! tokens equal?   medians and ratios within a round   advice by the measured and the priced speed-up
//! ```
//!
//! Ratios are formed within a round, because a disturbance of the machine affects neighbouring runs
//! alike. Each round begins with another method, so that none always follows the same one.
//!
//! Tried and dropped: an engine per method (the weights as often in memory, and teams of threads
//! that are pinned to the same cores); answers that go on beyond the model's own end (they repeat
//! themselves, which flatters methods that draft from repetitions).

mod advice;
mod prompts;
mod report;
mod rule;
mod subject;

use pelton_base::SamplingParams;
use pelton_llm::{Llm, SpecMethod};

use crate::{Progress, Result, Watch};
pub use prompts::{Ask, Texts, gather};
pub use report::Report;
use subject::{Cell, Subject};

/// The methods to compare, and the settings of the comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Methods to compare with plain decoding; the model is loaded with each of them.
    pub methods: Vec<SpecMethod>,
    /// Requests answered at once, each size once and in ascending order.
    pub batches: Vec<usize>,
    /// Most tokens of each answer.
    pub max_tokens: usize,
    /// Most tokens drafted at once for one request.
    pub max_drafts: usize,
    /// How often everything is measured.
    pub rounds: usize,
    /// How every answer is sampled, but for its seed.
    pub sampling: SamplingParams,
    /// Whether texts become messages where the model has a chat template.
    pub is_chat: bool,
}

impl Config {
    /// The names of everything that is compared, plain decoding first.
    pub fn names(&self) -> Vec<&'static str> {
        self.with_plain().into_iter().map(name).collect()
    }

    fn with_plain(&self) -> Vec<SpecMethod> {
        [&[SpecMethod::Off][..], &self.methods].concat()
    }
}

/// Compares drafting methods with plain decoding on these texts.
///
/// # Errors
///
/// Texts that the model cannot be asked, an engine that refuses or fails.
pub fn measure(
    llm: &Llm,
    config: &Config,
    texts: &[Texts<Ask>],
    watch: Watch<'_>,
) -> Result<Report> {
    let methods = config.with_plain();
    let texts = prompts::encode(llm, texts, config.is_chat)?;
    let sampling = config.sampling.clone();
    let subject = Subject::new(llm, sampling, config.max_tokens, watch.is_stopped);
    let mut cells: Vec<Cell> = Vec::new();
    for &batch in &config.batches {
        cells.extend(texts.iter().map(|text| Cell::new(batch, text, methods.len())));
    }
    let is_complete = measure_rounds(&subject, &mut cells, &methods, config.rounds, watch)?;
    let cost = llm.metrics().cost;
    let mut report = Report::new(llm.info(), &methods, &cells, (config.max_drafts, &cost));
    report.interrupted = !is_complete;
    Ok(report)
}

/// Measures every cell with every method once per round, after a round that is not counted; `false`
/// when the caller stopped before the end.
fn measure_rounds(
    subject: &Subject<'_>,
    cells: &mut [Cell],
    methods: &[SpecMethod],
    n_rounds: usize,
    watch: Watch<'_>,
) -> Result<bool> {
    let n_per_round = cells.len() * methods.len();
    let n_steps = n_rounds.saturating_add(1).saturating_mul(n_per_round);
    let mut n_done = 0;
    for round in 0..=n_rounds {
        for cell in &mut *cells {
            for turn in 0..methods.len() {
                let idx = (turn + round) % methods.len();
                let method = methods[idx];
                let (batch, kind, name) = (cell.batch, &cell.text.kind, name(method));
                let label = format!("round {round}, {batch} x {kind}, {name}");
                (watch.progress)(Progress { n_done, n_steps, label: &label });
                let Some(run) = subject.run(cell, method)? else { return Ok(false) };
                cell.add(idx, run, round > 0);
                n_done += 1;
            }
        }
    }
    Ok(true)
}

/// A method's name in reports.
fn name(method: SpecMethod) -> &'static str {
    if method == SpecMethod::Off { "plain" } else { method.name() }
}
