//! `pelton bench sweep`; see [`pelton_bench::sweep`].

use std::sync::Arc;

use indicatif::ProgressBar;
use pelton_bench::record::{NoiseWatch, Worker};
use pelton_bench::serve::{Bench, ServeReport, Texts};
use pelton_bench::sweep::{Load, Point, Report};
use pelton_bench::{Pace, Progress};

use super::serve::worker;
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

/// The points of a sweep as far as it came.
#[derive(Default)]
struct Swept {
    points: Vec<Point>,
    workload: String,
    server: String,
    /// Requests of the loads before, as many texts of a file that are used up.
    n_requests: u64,
    /// The program that did the work until now.
    worker: Option<Worker>,
    /// The error that ended it.
    failure: Option<Failure>,
}

/// The flags, and the texts of `--prompts`.
type Subject<'a> = (&'a BenchSweepArgs, Option<&'a Arc<Texts>>);

/// Runs the command.
///
/// # Errors
///
/// Flags without effect, a server that does not answer, a trace that is wrong, Ctrl-C. Loads that
/// were measured before are reported. It is one, too, if no request was answered.
pub(super) fn measure(args: &BenchSweepArgs) -> Result<()> {
    args.check()?;
    let loads = args.loads();
    let bar = progress::steps(0);
    let texts = args.server.texts(&args.workload)?;
    let noise = NoiseWatch::begin();
    let swept = super::generate(async || all((args, texts.as_ref()), &loads, &bar).await)?;
    bar.finish_and_clear();
    let Swept { points, workload, server, failure, worker, .. } = swept;
    // Without an answer of a server nothing is known of its time.
    let noise = worker.and_then(|worker| noise.end(worker));
    let is_interrupted = points.len() < loads.len();
    let failure = match failure {
        // Nothing was measured that a report could show.
        Some(failure) if points.is_empty() => return Err(failure),
        other => other,
    };
    let mut report = Report::new(workload, server, points);
    report.interrupted = is_interrupted;
    let printed = super::finish(&report, Report::render, noise, args.json);
    failure.map_or(printed, Err)?;
    super::expect_answers(report.unanswered())
}

/// The points until Ctrl-C or an error, the workload and the server in words.
async fn all(subject: Subject<'_>, loads: &[Load], bar: &ProgressBar) -> Result<Swept> {
    let mut interrupts = Interrupts::listen()?;
    let mut swept = Swept::default();
    for (place, &load) in (0_u64..).zip(loads) {
        match one(subject, (place, load), &mut swept, (&mut interrupts, bar)).await {
            Ok(Some(point)) => swept.points.push(point),
            Ok(None) => break,
            Err(failure) => {
                swept.failure = Some(failure.at(&load.name()));
                break;
            }
        }
    }
    Ok(swept)
}

/// One load; `None` when Ctrl-C came before its end.
async fn one(
    (args, texts): Subject<'_>,
    (place, load): (u64, Load),
    swept: &mut Swept,
    (interrupts, bar): (&mut Interrupts, &ProgressBar),
) -> Result<Option<Point>> {
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
    let words = args.workload.describe(&trace, pace);
    let mut config = args.server.config((words, texts), n_requests, pace)?;
    let words = config.workload.clone();
    config.first_number = if texts.is_some() { swept.n_requests } else { place * NUMBERS };
    swept.n_requests += n_requests;
    config.looks = true;
    if swept.points.is_empty() {
        swept.workload = words;
        swept.server = config.address.to_string();
    }
    let is_here = config.address.is_here();
    let bench = Bench::connect(config).await.map_err(super::failure)?;
    eprintln!("{}: {n_requests} requests", load.name());
    let progress = |at: Progress<'_>| super::show(bar, at);
    let run = bench.run((&trace, args.workload.grouping(&trace)), interrupts.next(), &progress);
    let run: ServeReport = run.await.map_err(super::failure)?;
    swept.worker = Some(match (swept.worker, worker(is_here, &run)) {
        (Some(Worker::Here(before)), Worker::Here(now)) => {
            Worker::Here(before.zip(now).map(|(before, now)| before + now))
        }
        (_, worker) => worker,
    });
    Ok((!run.served.interrupted).then(|| Point::new(load, &run)))
}
