//! The speed of one model through the real engine, next to the machine's limits.
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
//! A shared machine is slower in one minute than in the next. So each round measures everything
//! once, and ratios are formed within a round: a disturbance then affects both of their figures.
//!
//! Tried and dropped: a second decoder beside the engine (the weights twice in memory, and two
//! teams of threads pinned to the same cores); a fresh prefill before every long context (it takes
//! most of the time and does not change the KV that the steps read).

mod plan;
pub(crate) mod report;
mod subject;

use pelton_kernels::Ceilings;
use pelton_model::{CpuDevice, Decoder, available_memory_bytes};

use crate::ceilings::multiplier;
use crate::profile::{Speeds, StepProfile};
use crate::{Progress, Result, Watch, ceilings};
pub use plan::{Config, Plan};
use report::Facts;
pub use report::Report;
use subject::Subject;

/// A loaded model and its names.
#[derive(Debug)]
pub struct Loaded {
    /// Name of the model for the report.
    pub name: String,
    /// Name of its architecture.
    pub architecture: String,
    /// The model.
    pub decoder: Decoder<CpuDevice>,
}

/// Carries out a plan. `None` when the caller stopped before everything was computed once.
///
/// Each figure is a step of `watch`, whose label is the figure in words.
///
/// # Errors
///
/// A plan that needs more memory than there is, an engine that fails.
pub fn measure(loaded: Loaded, plan: &Plan, watch: Watch<'_>) -> Result<Option<Report>> {
    let Loaded { name, architecture, decoder } = loaded;
    let facts = Facts::new(name, architecture, &decoder);
    let needs = plan.needs(
        decoder.kv_bytes_per_block(crate::shared::BLOCK_TOKENS),
        decoder.spec().vocab_size.saturating_mul(size_of::<f32>()),
        available_memory_bytes(),
    )?;
    let Some(mut subject) = Subject::new(decoder, plan, needs, watch.is_stopped)? else {
        return Ok(None);
    };
    let peaks = |subject: &Subject<'_>| {
        subject.with_decoder(|decoder| ceilings::measure(decoder.device().cpu()))
    };
    let before = peaks(&subject);
    let mut samples = vec![Vec::new(); plan.variants.len()];
    let mut bandwidths = Vec::new();
    measure_rounds(plan, &mut subject, &mut samples, &mut bandwidths, watch)?;
    let peaks = before.max(peaks(&subject));
    let mut report = Report::new(plan, facts, &peaks, &bandwidths, &samples);
    if plan.profile && !report.interrupted {
        report.profiles = profiles(plan, &mut subject, &peaks, &report)?;
    }
    Ok(Some(report))
}

/// Times the operations of prompts and of generation; none when the caller stopped.
fn profiles(
    plan: &Plan,
    subject: &mut Subject<'_>,
    ceilings: &Ceilings,
    report: &Report,
) -> Result<Vec<StepProfile>> {
    let facts = report.facts();
    let speeds = Speeds {
        bandwidth: report.bandwidth().unwrap_or(f64::INFINITY),
        products: multiplier(facts.layout, ceilings).1,
        floats: ceilings.f32,
    };
    let mut profiles = Vec::new();
    for &variant in &plan.variants {
        let Some(work) = plan.work(variant, facts) else { continue };
        let Some(laps) = subject.laps(variant)? else { return Ok(Vec::new()) };
        let found = subject.with_decoder(|decoder| StepProfile::new(decoder, &work, speeds, &laps));
        profiles.extend(found);
    }
    Ok(profiles)
}

/// Measures everything once per round, the read bandwidth first, until the caller stops.
fn measure_rounds(
    plan: &Plan,
    subject: &mut Subject<'_>,
    samples: &mut [Vec<f64>],
    bandwidths: &mut Vec<f64>,
    watch: Watch<'_>,
) -> Result<()> {
    let n_steps = plan.rounds.saturating_mul(plan.variants.len());
    let mut n_done = 0;
    for round in 1..=plan.rounds {
        let read = subject.with_decoder(|decoder| ceilings::read_bandwidth(decoder.device().cpu()));
        bandwidths.push(read);
        for (&variant, samples) in plan.variants.iter().zip(samples.iter_mut()) {
            let Some(seconds) = subject.measure(variant)? else { return Ok(()) };
            // A clock that does not advance would make rates infinite.
            let seconds = seconds.max(1e-9);
            samples.push(seconds);
            let rate = variant.n_rows() as f64 / seconds;
            let (n_rounds, name) = (plan.rounds, variant.name());
            let label = format!("round {round} of {n_rounds}  {name:<20} {rate:>10.1} tokens/s");
            n_done += 1;
            (watch.progress)(Progress { n_done, n_steps, label: &label });
        }
    }
    Ok(())
}
