//! `pelton bench sweep`; see [`pelton_bench::sweep`].

use indicatif::ProgressBar;
use pelton_bench::serve::{Bench, ServeReport};
use pelton_bench::sweep::{Load, Point, Report};
use pelton_bench::{Pace, Progress};

use crate::args::BenchSweepArgs;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupts;
use crate::progress;

/// Requests of a load by rate when no flag says how many.
const DEFAULT_REQUESTS: u64 = 64;
/// The same by clients: so many for each, and at least so many.
const REQUESTS_PER_CLIENT: u64 = 4;
const FEWEST_REQUESTS: u64 = 24;
/// Distance of the numbers of requests of two loads, so that no prompt comes twice.
const NUMBERS: u64 = 1 << 32;

/// Runs the command.
///
/// # Errors
///
/// A server that does not answer, a trace that is wrong, Ctrl-C.
pub(super) fn measure(args: &BenchSweepArgs) -> Result<()> {
    let loads = args.loads();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::internal(format!("cannot start the runtime: {error}")))?;
    let bar = progress::steps(0);
    let (points, workload, server) = runtime.block_on(all(args, &loads, &bar))?;
    bar.finish_and_clear();
    let is_interrupted = points.len() < loads.len();
    let mut report = Report::new(workload, server, points);
    report.interrupted = is_interrupted;
    super::finish(&report, Report::render, args.json)
}

/// The points until Ctrl-C, the workload and the server in words.
async fn all(
    args: &BenchSweepArgs,
    loads: &[Load],
    bar: &ProgressBar,
) -> Result<(Vec<Point>, String, String)> {
    let mut interrupts = Interrupts::listen()?;
    let mut points: Vec<Point> = Vec::new();
    let (mut workload, mut server) = (String::new(), String::new());
    for (place, &load) in (0_u64..).zip(loads) {
        let (rate, pace, n_default) = match load {
            Load::Rate(rate) => (Some(rate), Pace::Clock, DEFAULT_REQUESTS),
            Load::Clients(n) => {
                let n_requests = (n as u64).saturating_mul(REQUESTS_PER_CLIENT);
                (None, Pace::Concurrency(n), n_requests.max(FEWEST_REQUESTS))
            }
        };
        let trace = args.workload.trace_at(n_default, rate, place)?;
        let n_requests = args.workload.n_requests(&trace).min(match &trace {
            // A file has as many requests as it has.
            pelton_sim::trace::Trace::File(_) if args.workload.is_unbounded() => n_default,
            _ => u64::MAX,
        });
        let words = args.workload.describe(&trace);
        let mut config = args.server.config(words.clone(), n_requests, pace)?;
        config.first_number = place * NUMBERS;
        config.looks = true;
        if points.is_empty() {
            workload = words;
            server = config.address.to_string();
        }
        let bench = match Bench::connect(config).await {
            // A server that fell over at a high load: the loads before are the result.
            Err(error) if !points.is_empty() => {
                eprintln!("{}: {error}", load.name());
                break;
            }
            bench => bench.map_err(super::failure)?,
        };
        eprintln!("{}: {n_requests} requests", load.name());
        let progress = |at: Progress<'_>| super::show(bar, at);
        let run = bench.run((&trace, args.workload.grouping(&trace)), interrupts.next(), &progress);
        let run: ServeReport = run.await.map_err(super::failure)?;
        if run.served.interrupted {
            break;
        }
        points.push(Point::new(load, &run));
    }
    Ok((points, workload, server))
}
