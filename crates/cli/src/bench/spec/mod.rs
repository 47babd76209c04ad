//! `pelton bench spec`: what guessing brings on given texts, next to plain decoding.
//!
//! ```text
//! load once, with every method
//! round 0 (not counted): prompts into the prefix cache, steps priced, drafts' times learned
//! for each round, batch size and kind of text
//!     plain │ method │ method │ ...      the same requests, each saying who guesses for it
//! tokens equal?   medians and ratios within a round   advice by the measured and the priced speed-up
//! ```
//!
//! What disturbs one run disturbs its neighbours alike, so ratios are formed within a round; and each
//! round begins with another method, so that none always follows the same one.
//!
//! Tried and dropped: an engine per method (the weights as often in memory, and teams of threads that
//! are pinned to the same cores); answers that go on beyond the model's own end (they repeat
//! themselves, which flatters whoever guesses from repetitions).

mod advice;
mod prompts;
mod report;
mod rule;
mod subject;

use pelton_base::SamplingParams;
use pelton_llm::{LlmOptions, SpecConfig, SpecMethod};

use crate::args::{BenchSpecArgs, SpecArgs};
use crate::failure::{Failure, Result};
use crate::interrupt::StopFlag;
use crate::{model, progress};
use report::Report;
use subject::{Cell, Subject};

/// Runs the command.
///
/// # Errors
///
/// A model that cannot be loaded, texts that cannot be read, flags that contradict each other, tokens
/// that are not those of plain decoding, Ctrl-C.
pub(crate) fn measure(args: &BenchSpecArgs) -> Result<()> {
    let sampling = SamplingParams { temperature: args.temperature, ..SamplingParams::default() };
    sampling.validate().map_err(|error| {
        Failure::new(format!("`--{}` must be {}, got {}", error.param, error.expected, error.got))
    })?;
    let texts = prompts::gather(args.prompts.as_deref())?;
    let options = options(args)?;
    let methods = [&[SpecMethod::Off][..], &options.further_methods].concat();
    let reference = model::reference(args.model.model.as_deref())?;
    let is_chat = !model::is_embedded(&reference);
    let llm = model::load(&reference, &options)?;

    let stop = StopFlag::listen()?;
    let texts = prompts::encode(&llm, &texts, is_chat)?;
    let subject = Subject::new(&llm, sampling, args.max_tokens(), &stop);
    let mut cells: Vec<Cell> = Vec::new();
    for batch in args.batches() {
        cells.extend(texts.iter().map(|text| Cell::new(batch, text, methods.len())));
    }
    let names: Vec<&str> = methods.iter().map(|&method| name(method)).collect();
    eprintln!("comparing {}, {} rounds", names.join(", "), args.rounds());
    let is_complete = measure_rounds(&subject, &mut cells, &methods, args.rounds())?;
    let (cost, spec_max) = (llm.metrics().cost, args.spec_max());
    let mut report = Report::new(llm.info(), &methods, &cells, (spec_max, &cost));
    report.interrupted = !is_complete;
    super::print(&report, Report::render, args.json)?;
    match report.differing() {
        Some(message) => Err(Failure::internal(message)),
        None if is_complete => Ok(()),
        None => Err(Failure::interrupted()),
    }
}

/// Measures every cell with every method once per round, after a round that is not counted; `false`
/// after Ctrl-C.
fn measure_rounds(
    subject: &Subject<'_>,
    cells: &mut [Cell],
    methods: &[SpecMethod],
    n_rounds: usize,
) -> Result<bool> {
    let bar = progress::steps((n_rounds + 1) * cells.len() * methods.len());
    for round in 0..=n_rounds {
        for cell in &mut *cells {
            for turn in 0..methods.len() {
                let idx = (turn + round) % methods.len();
                let method = methods[idx];
                let kind = &cell.text.kind;
                bar.set_message(format!(
                    "round {round}, {} x {kind}, {}",
                    cell.batch,
                    name(method)
                ));
                let Some(run) = subject.run(cell, method)? else {
                    bar.finish_and_clear();
                    return Ok(false);
                };
                cell.add(idx, run, round > 0);
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    Ok(true)
}

/// A method as it is told.
fn name(method: SpecMethod) -> &'static str {
    if method == SpecMethod::Off { "plain" } else { method.name() }
}

/// The model with all methods that are to be compared.
fn options(args: &BenchSpecArgs) -> Result<LlmOptions> {
    let mut args_of_all = SpecArgs { draft_model: args.draft_model.clone(), ..SpecArgs::default() };
    let mut methods: Vec<SpecMethod> = Vec::new();
    let mut exit_layers = None;
    for choice in &args.methods {
        if choice.method == SpecMethod::Off {
            return Err(Failure::new(
                "`--methods`: plain decoding (`off`) is always measured; leave it out",
            ));
        }
        if methods.contains(&choice.method) {
            return Err(Failure::new(format!("`--methods`: `{choice}` is the second of its kind")));
        }
        methods.push(choice.method);
        exit_layers = exit_layers.or(choice.exit_layers);
        if choice.draft_model.is_some() {
            args_of_all.spec = Some(choice.clone());
        }
    }
    if methods.is_empty() {
        methods = all_that_can_run(args.draft_model.is_some());
    }
    let max_running = args.batches().last().copied().unwrap_or(1);
    let mut options =
        args_of_all.apply(LlmOptions { max_running, ..model::options(&args.model) })?;
    options.spec.method = SpecMethod::Off;
    options.spec.max_drafts = args.spec_max();
    options.spec.exit_layers = exit_layers;
    options.further_methods = methods;
    Ok(options)
}

/// Every method that needs nothing, `draft` where there is a model, and the choice among them.
fn all_that_can_run(has_draft_model: bool) -> Vec<SpecMethod> {
    let can_run = |method: &SpecMethod| match method {
        // How many layers is for the caller to say.
        SpecMethod::Off | SpecMethod::EarlyExit => false,
        SpecMethod::Draft => has_draft_model,
        &method => !SpecConfig { method, ..SpecConfig::default() }.proposers().is_empty(),
    };
    SpecMethod::ALL.iter().copied().filter(can_run).collect()
}
