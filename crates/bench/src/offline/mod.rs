//! Batches of equal requests through the real engine: prompts and generation apart, with their
//! tails.
//!
//! ```text
//! batch x input + output     all requests arrive together, nothing else runs
//!
//! first step begins                      last prompt ends                        last token
//!   ├── prompts ──────────────────────────────┤── generation, all together ── ... ──┤
//!   ├── TTFT of each request ──┤ ...          │ time of a token: end of a step to the next
//! ```
//!
//! Each round measures every shape once, so that a slow minute slows all of them alike. Requests
//! whose prompts are done generate while others still read theirs, as they do in a server; the rate
//! of the prompts includes that, and the rate of generation counts only the steps in which all
//! generate. It is absent where the first answer ends before the last prompt does.
//!
//! MFU counts the operations of the matrix products, two per weight and row, against the measured
//! peak of the multiplier of most weights. The share of the bandwidth counts weights, and the keys
//! and values of all sequences in the middle of their answers, against the reads measured in the
//! same round.

mod plan;
mod report;
mod subject;

use pelton_model::available_memory_bytes;

use crate::estimate::median;
use crate::model::Loaded;
use crate::model::report::Facts;
use crate::profile::{Speeds, StepProfile};
use crate::{Progress, Result, Watch, ceilings};
pub use plan::{Config, Lengths, Plan};
pub use report::Report;
use subject::{Pass, Subject};

/// Carries out a plan. `None` when the caller stopped before the first shape was measured.
///
/// # Errors
///
/// A shape that needs more memory than there is, an engine that fails.
pub fn measure(loaded: Loaded, mut plan: Plan, watch: Watch<'_>) -> Result<Option<Report>> {
    let Loaded { name, architecture, decoder } = loaded;
    let facts = Facts::new(name, architecture, &decoder);
    let logits_row_bytes = decoder.spec().vocab_size.saturating_mul(size_of::<f32>());
    let block_bytes = decoder.kv_bytes_per_block(crate::shared::BLOCK_TOKENS);
    let n_blocks = plan.fit(block_bytes, logits_row_bytes, available_memory_bytes())?;
    let mut subject = Subject::new(decoder, &plan, n_blocks, watch.is_stopped)?;
    let before = subject.with_cpu(ceilings::measure);
    if !subject.warm_up(&plan)? {
        return Ok(None);
    }
    let mut passes: Vec<Vec<Pass>> = vec![Vec::new(); plan.shapes.len()];
    let mut bandwidths = Vec::new();
    rounds(&plan, &mut subject, &mut passes, &mut bandwidths, watch)?;
    if passes[0].is_empty() {
        return Ok(None);
    }
    let peaks = before.max(subject.with_cpu(ceilings::measure));
    let profile = plan.profile.then(|| {
        let bandwidth = median(&bandwidths).unwrap_or(f64::INFINITY);
        let products = ceilings::multiplier(facts.layout, &peaks).1;
        let speeds = Speeds { bandwidth, products, floats: peaks.f32 };
        profiles(&plan, &mut subject, (&facts, speeds))
    });
    let profiles = profile.transpose()?.unwrap_or_default();
    let n_bytes = n_blocks * block_bytes;
    let mut report = Report::new(&plan, facts, n_bytes, (&peaks, &bandwidths), &passes);
    report.profiles = profiles;
    Ok(Some(report))
}

/// Times the operations of prompts and generation of each shape, until the caller stops.
fn profiles(
    plan: &Plan,
    subject: &mut Subject<'_>,
    (facts, speeds): (&Facts, Speeds),
) -> Result<Vec<StepProfile>> {
    let mut profiles = Vec::new();
    for shape in &plan.shapes {
        let Some(laps) = subject.laps(shape)? else { break };
        let Some(first) = laps.first() else { continue };
        let works = shape.work(facts, first.n_rows);
        profiles.extend(works.iter().filter_map(|work| {
            subject.with_decoder(|decoder| StepProfile::new(decoder, work, speeds, &laps))
        }));
    }
    Ok(profiles)
}

/// Measures each shape once per round, the read bandwidth first, until the caller stops.
fn rounds(
    plan: &Plan,
    subject: &mut Subject<'_>,
    passes: &mut [Vec<Pass>],
    bandwidths: &mut Vec<f64>,
    watch: Watch<'_>,
) -> Result<()> {
    let n_steps = plan.rounds.saturating_mul(plan.shapes.len());
    let mut n_done = 0;
    for round in 1..=plan.rounds {
        bandwidths.push(subject.with_cpu(ceilings::read_bandwidth));
        for (shape, passes) in plan.shapes.iter().zip(passes.iter_mut()) {
            let Some(pass) = subject.pass(shape)? else { return Ok(()) };
            n_done += 1;
            let label = format!(
                "round {round} of {}  {:<20} {:>8.1} tokens/s of prompts, {:>8.1} of answers together",
                plan.rounds,
                shape.name(),
                pass.prompt_rate(shape),
                pass.output_rate(shape)
            );
            (watch.progress)(Progress { n_done, n_steps, label: &label });
            passes.push(pass);
        }
    }
    Ok(())
}
