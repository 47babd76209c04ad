//! `pelton bench model`: the speed of one model, as its users get it, next to the machine's limits.
//!
//! ```text
//! load, compute everything once; ceilings
//! for each round                                what               through
//!     bandwidth       reads of memory far beyond the caches        -
//!     prefill         a prompt to its first token                  engine
//!     decode          1, 8, 32 sequences from a short context      engine
//!     context         one row behind 128, 4096 tokens              forward
//!     verify          1, K, K + 1 rows of one sequence             forward
//! ceilings again; medians
//! ```
//!
//! A machine that others use is slower in one minute than in the next. So everything is measured
//! once per round instead of five times in a row, and ratios are formed within a round: what
//! disturbs one figure disturbs its neighbour alike.
//!
//! Tried and dropped: an engine and a decoder of their own (the weights twice in memory, and two
//! teams of threads that are pinned to the same cores); a fresh prefill before every long context
//! (it takes most of the time and changes no bit of what the steps read).

mod plan;
mod report;
mod subject;

use pelton_model::{LoadOptions, available_memory_bytes};

use super::ceilings;
use crate::args::BenchModelArgs;
use crate::failure::{Failure, Result};
use crate::interrupt::StopFlag;
use crate::model;
use crate::progress::Progress;
use plan::Plan;
use report::{Facts, Report};
use subject::Subject;

/// Runs the command.
///
/// # Errors
///
/// A model that cannot be loaded, flags that ask for more than model or memory hold, Ctrl-C.
pub(crate) fn measure(args: &BenchModelArgs) -> Result<()> {
    let reference = model::reference(args.model.model.as_deref())?;
    let files = model::resolve(&reference)?.open()?;
    let max_context = args.model.max_context().unwrap_or(files.spec()?.max_context);
    // What can be refused without the weights is refused before they are loaded.
    let plan = Plan::new(args, max_context)?;
    let progress = Progress::new();
    let options = LoadOptions {
        compute: model::compute(args.model.compute),
        n_threads: args.model.threads(),
        kv_dtype: args.model.kv_dtype,
        max_context: args.model.max_context(),
        tune: Some(&pelton_llm::tune),
        progress: Some(&|at| progress.loading(at.n_bytes, at.n_total_bytes)),
        ..LoadOptions::default()
    };
    let decoder = pelton_model::load_cpu(&files, &options)?;
    progress.clear();
    let facts = Facts::new(reference.display_name(), files.config().architecture.clone(), &decoder);
    let needs = plan.needs(
        decoder.kv_bytes_per_block(plan::BLOCK_TOKENS),
        decoder.spec().vocab_size.saturating_mul(size_of::<f32>()),
        available_memory_bytes(),
    )?;

    let stop = StopFlag::listen()?;
    let mut samples = vec![Vec::new(); plan.variants.len()];
    let Some(mut subject) = Subject::new(decoder, &plan, needs, &stop)? else {
        return Err(Failure::interrupted());
    };
    let ceilings = |subject: &Subject| {
        subject.with_decoder(|decoder| ceilings::measure(decoder.backend().cpu()))
    };
    let before = ceilings(&subject);
    let mut bandwidths = Vec::new();
    let is_complete = measure_rounds(&plan, &mut subject, &mut samples, &mut bandwidths)?;
    let peaks = before.max(ceilings(&subject));
    let report = Report::new(&plan, facts, &peaks, &bandwidths, &samples);
    super::print(&report, Report::render, args.json)?;
    if is_complete { Ok(()) } else { Err(Failure::interrupted()) }
}

/// Measures everything once per round, the read bandwidth first, and tells each figure on stderr;
/// `false` after Ctrl-C.
fn measure_rounds(
    plan: &Plan,
    subject: &mut Subject,
    samples: &mut [Vec<f64>],
    bandwidths: &mut Vec<f64>,
) -> Result<bool> {
    for round in 1..=plan.rounds {
        let read =
            subject.with_decoder(|decoder| ceilings::read_bandwidth(decoder.backend().cpu()));
        bandwidths.push(read);
        for (&variant, samples) in plan.variants.iter().zip(samples.iter_mut()) {
            let Some(seconds) = subject.measure(variant)? else { return Ok(false) };
            // A clock that does not advance would make rates infinite.
            let seconds = seconds.max(1e-9);
            samples.push(seconds);
            let rate = variant.n_rows() as f64 / seconds;
            let (n_rounds, name) = (plan.rounds, variant.name());
            eprintln!("round {round} of {n_rounds}  {name:<20} {rate:>10.1} tokens/s");
        }
    }
    Ok(true)
}
