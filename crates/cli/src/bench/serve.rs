//! `pelton bench serve`; see [`pelton_bench::serve`].

use pelton_bench::serve::{Bench, ServeReport};

use crate::args::BenchServeArgs;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupts;
use crate::progress;

/// Requests that are sent when no flag says how many.
const DEFAULT_REQUESTS: u64 = 64;

/// Runs the command.
///
/// # Errors
///
/// A server that does not answer, a trace that is wrong, Ctrl-C. Failed requests alone are no error:
/// the report names them.
pub(super) fn measure(args: &BenchServeArgs) -> Result<()> {
    let trace = args.workload.trace(DEFAULT_REQUESTS)?;
    let config = args.config(&trace).map_err(super::failure)?;
    let grouping = args.workload.grouping(&trace);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::internal(format!("cannot start the runtime: {error}")))?;
    let bar = progress::steps(usize::try_from(config.n_requests).unwrap_or(0));
    let report = runtime.block_on(async {
        let mut interrupts = Interrupts::listen()?;
        let sending = format!("sending {} to {}", config.workload, config.address);
        let bench = Bench::connect(config).await.map_err(super::failure)?;
        eprintln!("{sending}");
        let progress = |at: pelton_bench::Progress<'_>| super::show(&bar, at);
        let run = bench.run((&trace, grouping), interrupts.next(), &progress);
        run.await.map_err(super::failure)
    })?;
    bar.finish_and_clear();
    let is_interrupted = report.served.interrupted;
    super::print(&report, ServeReport::render, args.json, is_interrupted)
}
