//! `pelton bench sim`: the scheduler with a fake model and a virtual clock; see [`pelton_sim`].

use std::ops::ControlFlow;

use indicatif::ProgressBar;
use pelton_bench::Pace;
use pelton_bench::record::Simulated;
use pelton_sim::report::{Ledger, Served};
use pelton_sim::trace::Trace;
use pelton_sim::{Prices, SimConfig, SimError, SimProgress, simulate as run};

use crate::args::{BenchSimArgs, SimVariant};
use crate::failure::{Failure, Result};
use crate::interrupt::StopFlag;
use crate::progress;

/// Requests that are simulated when no flag says how many.
const DEFAULT_REQUESTS: u64 = 10_000;

/// Runs the command.
///
/// # Errors
///
/// A trace or prices that are wrong, flags that contradict each other, a scheduler that gets stuck,
/// Ctrl-C, and a run in which no request was answered.
pub(super) fn simulate(args: &BenchSimArgs) -> Result<()> {
    let stop = StopFlag::listen()?;
    let prices = args.prices()?;
    let cost = prices.cost()?;
    let trace = args.workload.trace(DEFAULT_REQUESTS, &[args.input()])?;
    if trace.has_sessions() {
        let why = "requests of sessions wait for answers, and the simulator does not";
        return Err(Failure::new(why).hint("`pelton bench load` and `bench serve` run them"));
    }
    let variants = args.variants(trace.tenants())?;
    let mut served =
        Served::new(args.workload.describe(&trace, Pace::Clock), describe(&prices, &variants[0]));
    for SimVariant { name, scheduler } in variants {
        let config = SimConfig {
            noise: args.noise,
            seed: args.workload.seed(),
            admission: args.admission(),
            check: args.check || cfg!(debug_assertions),
            ..SimConfig::new(scheduler, cost)
        };
        let bar = progress::steps(usize::try_from(args.workload.n_requests(&trace)).unwrap_or(0));
        bar.set_message(format!("requests, {name}"));
        let ledger = serve(args, &config, &trace, &bar, &stop);
        bar.finish_and_clear();
        served.add(name, &ledger?, args.workload.grouping(&trace));
        if stop.is_set() {
            break;
        }
    }
    served.interrupted = stop.is_set();
    // The simulator has a clock of its own, which nothing else on the machine changes.
    super::finish(&Simulated(&served), |report| report.0.render(), None, args.json)?;
    super::expect_answers(served.unanswered())
}

/// One simulation, until its end or until Ctrl-C.
fn serve(
    args: &BenchSimArgs,
    config: &SimConfig,
    trace: &Trace,
    bar: &ProgressBar,
    stop: &StopFlag,
) -> Result<Ledger> {
    let n_requests = usize::try_from(args.workload.n_requests(trace)).unwrap_or(usize::MAX);
    let requests = trace.requests()?.take(n_requests);
    let mut watch = |progress: SimProgress| {
        bar.set_position(progress.n_done);
        if stop.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    run(config, requests, &mut watch).map_err(|error| match error {
        SimError::Trace(error) => error.into(),
        stuck => Failure::internal(stuck.to_string()),
    })
}

/// The simulated machine in words.
fn describe(prices: &Prices, variant: &SimVariant) -> String {
    let Prices { base_ms, token_ms, sample_ms, attended_ms, moved_block_ms } = prices;
    let config = &variant.scheduler;
    let choices = &config.choices;
    format!(
        "a simulated step of {base_ms} ms + {token_ms} per token + {sample_ms} per sample + \
         {attended_ms} per pair + {moved_block_ms} per block; {} blocks of {} tokens, at most {} \
         requests and {} tokens at once",
        config.n_blocks, config.block_size, choices.max_running, choices.max_batch_tokens
    )
}
