//! `pelton bench load`; see [`pelton_bench::load`].

use pelton_bench::load::{Config, drive};
use pelton_bench::record::{Driven, NoiseWatch, Worker};
use pelton_bench::{Pace, bytes};
use pelton_llm::LlmInfo;
use pelton_sim::report::Served;

use crate::args::BenchLoadArgs;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupts;
use crate::{model, progress};

/// Requests that are served when no flag says how many.
const DEFAULT_REQUESTS: u64 = 64;

/// Runs the command.
///
/// # Errors
///
/// A model that cannot be loaded, a trace that is wrong, an engine that stops, Ctrl-C; also if no
/// request was answered.
pub(super) fn load(args: &BenchLoadArgs) -> Result<()> {
    let workload = &args.workload;
    let place = model::path(&args.model());
    let trace = workload.trace(DEFAULT_REQUESTS, &[("-m", place.as_deref())])?;
    let chosen = args.chosen(trace.tenants())?;
    let reference = model::reference(Some(&chosen.model))?;
    let config = Config {
        n_requests: workload.n_requests(&trace),
        pace: args.concurrency().map_or(Pace::Clock, Pace::Concurrency),
        default_slo: chosen.llm.choices.slo,
    };
    let llm = model::load(&chosen.runtime()?, &reference, &chosen.llm)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::internal(format!("cannot start the runtime: {error}")))?;
    let bar = progress::steps(usize::try_from(config.n_requests).unwrap_or(0));
    let noise = NoiseWatch::begin();
    let run = runtime.block_on(async {
        let mut interrupts = Interrupts::listen()?;
        eprintln!("serving {}", workload.describe(&trace, config.pace));
        let progress = |at: pelton_bench::Progress<'_>| super::show(&bar, at);
        let run = drive(&llm, &trace, &config, interrupts.next(), &progress);
        run.await.map_err(super::failure)
    })?;
    let noise = noise.end(Worker::OwnOrElsewhere);
    bar.finish_and_clear();
    let mut served = Served::new(workload.describe(&trace, config.pace), describe(llm.info()));
    served.add(llm.info().name.clone(), &run.ledger, workload.grouping(&trace));
    served.interrupted = run.is_interrupted;
    super::finish(&Driven(&served), |report| report.0.render(), noise, args.json)?;
    super::expect_answers(served.unanswered())
}

/// The serving engine in words.
fn describe(info: &LlmInfo) -> String {
    format!(
        "{}, {} threads, contexts of {} tokens, {} of keys and values",
        info.name,
        info.n_threads,
        info.context_tokens,
        bytes(info.kv_bytes)
    )
}
