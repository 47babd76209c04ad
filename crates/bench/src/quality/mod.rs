//! The quality of a model on a text: its perplexity, and its distance from a reference model.
//!
//! ```text
//! tokens    0         stride      2 stride                                   n
//! window 0  |ssssssssssssssssssssss|                       s scored   . context only
//! window 1            |............|ssssssssss|
//! window 2                        |...........|ssssssssss|
//! ```
//!
//! Every token is scored once: those of the first window from as much as stands before them, all
//! others from at least `window - stride` tokens. A window begins with the tokens that the tokenizer
//! puts before a text, such as a beginning of sequence; without any, the first token of the text has
//! nothing before it and is not scored.
//!
//! A score is [`Scorer`]'s log probability of a row's logits, which is that of the same token when it
//! is generated, to the bit. The divergence from a reference is `Σ p (ln p - ln q)` over the whole
//! vocabulary with the reference as `p`, in f64 and in nats per token. The logits of a few rows lie in
//! memory at a time, whatever the length of the text.
//!
//! Intervals hold 95 % and are drawn by bootstrap over windows: see `interval`.
//!
//! [`ab`] puts two models side by side, [`tasks`] asks questions with known answers, and [`needle`]
//! hides a sentence in a long text.

pub mod ab;
mod interval;
pub mod needle;
mod report;
mod rows;
mod runner;
pub mod tasks;
mod text;

use std::time::Instant;

use pelton_model::{CpuDevice, Decoder};
use pelton_sampling::Scorer;

pub use interval::Interval;
pub use report::{Against, Report};
use rows::Pair;
use runner::Runner;
pub use text::{Config, Tokens};

use crate::{BenchError, Progress, Result, Watch};

/// Rows whose logits lie in memory at a time; changes no bit of them.
const CHUNK_ROWS: usize = 64;

/// A loaded model and its name.
#[derive(Debug)]
pub struct Subject {
    /// Name of the model for the report.
    pub name: String,
    /// The model.
    pub decoder: Decoder<CpuDevice>,
}

/// Sums over the scored tokens of one window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Sums {
    n_tokens: usize,
    n_bytes: usize,
    /// Negative log likelihood under the model.
    nats: f64,
    /// The same under the reference.
    reference_nats: f64,
    /// Divergence of the model from the reference.
    kl: f64,
    /// Tokens where both hold the same token for the likeliest.
    n_agreed: usize,
}

/// Scores a text. `None` when the caller stopped before the first window was done.
///
/// # Errors
///
/// When model and reference have vocabularies of different sizes, or the memory for keys and values
/// is refused.
pub fn measure(
    model: &mut Subject,
    mut reference: Option<&mut Subject>,
    tokens: &Tokens,
    config: &Config,
    watch: Watch<'_>,
) -> Result<Option<Report>> {
    if let Some(reference) = &reference {
        check_vocabularies(model, reference)?;
    }
    let started = Instant::now();
    let mut own = Runner::new(&model.decoder, config.window)?;
    let mut theirs = match &reference {
        Some(reference) => Some(Runner::new(&reference.decoder, config.window)?),
        None => None,
    };
    let windows = tokens.windows(config);
    let mut sums = Vec::with_capacity(windows.len());
    let mut scorer = Scorer::default();
    for (idx, window) in windows.iter().enumerate() {
        if (watch.is_stopped)() {
            break;
        }
        let mut window_sums = Sums::default();
        for rows in window.chunks() {
            own.run_window(&mut model.decoder, window, &rows);
            let logits = match (&mut reference, &mut theirs) {
                (Some(reference), Some(theirs)) => {
                    theirs.run_window(&mut reference.decoder, window, &rows);
                    Some(theirs.logits())
                }
                _ => None,
            };
            let pair =
                Pair { vocab_size: own.vocab_size(), model: own.logits(), reference: logits };
            pair.add(&mut scorer, window.targets(&rows), &mut window_sums);
        }
        window_sums.n_bytes = window.n_bytes;
        sums.push(window_sums);
        let label = format!("perplexity {:.4}", report::perplexity(&sums));
        (watch.progress)(Progress { n_done: idx + 1, n_steps: windows.len(), label: &label });
    }
    let facts = report::Facts {
        model: model.name.clone(),
        reference: reference.map(|reference| reference.name.clone()),
        n_prefix: tokens.prefix.len(),
        n_windows_planned: windows.len(),
        seconds: started.elapsed().as_secs_f64(),
    };
    Ok((!sums.is_empty()).then(|| Report::new(facts, config, &sums)))
}

fn check_vocabularies(model: &Subject, reference: &Subject) -> Result<()> {
    let sizes = [model, reference].map(|subject| subject.decoder.spec().vocab_size);
    if sizes[0] == sizes[1] {
        return Ok(());
    }
    Err(BenchError::invalid(format!(
        "{} has a vocabulary of {} tokens and the reference {} one of {}: expected the same vocabulary",
        model.name, sizes[0], reference.name, sizes[1]
    )))
}
