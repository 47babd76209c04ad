//! `pelton bench serve`; see [`pelton_bench::serve`].

use pelton_bench::record::{NoiseWatch, Worker};
use pelton_bench::serve::{Bench, ServeReport, Traffic};

use crate::args::BenchServeArgs;
use crate::failure::Result;
use crate::interrupt::Interrupts;
use crate::progress;

/// Requests that are sent when neither a flag nor a file of prompts says how many.
const DEFAULT_REQUESTS: u64 = 64;

/// Runs the command.
///
/// # Errors
///
/// A server that does not answer, a trace that is wrong, Ctrl-C. Some failed requests are no error,
/// because the report names them; it is one if no request was answered.
pub(super) fn measure(args: &BenchServeArgs) -> Result<()> {
    let inputs = args.server.inputs();
    super::check_outputs(
        &[("--vllm-json", args.vllm_json.as_deref())],
        &[&inputs[..], &[args.workload.input()]].concat(),
    )?;
    let texts = args.server.texts(&args.workload)?;
    let n_default = texts.as_ref().map_or(DEFAULT_REQUESTS, |texts| texts.n_texts());
    let trace = args.workload.trace(n_default, &inputs)?;
    let config = args.config(&trace, texts.as_ref())?;
    let grouping = args.workload.grouping(&trace);
    let traffic = Traffic {
        pace: args.pace(),
        arrivals: args.workload.arrivals(&trace),
        n_requests: config.n_requests,
        has_targets: args.server.has_targets(),
    };
    let bar = progress::steps(usize::try_from(config.n_requests).unwrap_or(0));
    let (noise, is_here) = (NoiseWatch::begin(), config.address.is_here());
    let run = async || {
        let mut interrupts = Interrupts::listen()?;
        let sending = format!("sending {} to {}", config.workload, config.address);
        let bench = Bench::connect(config).await.map_err(super::failure)?;
        eprintln!("{sending}");
        let progress = |at: pelton_bench::Progress<'_>| super::show(&bar, at);
        let run = bench.run((&trace, grouping), interrupts.next(), &progress);
        run.await.map_err(super::failure)
    };
    let report = super::generate(run)?;
    let noise = noise.end(worker(is_here, &report));
    bar.finish_and_clear();
    let written = args.vllm_json.as_ref().map_or(Ok(()), |path| {
        let file = report.vllm(&date(), traffic);
        super::reports::write(path, &(serde_json::to_string_pretty(&file)? + "\n"))
    });
    // The run is printed, whatever became of the file.
    super::finish(&report, ServeReport::render, noise, args.json).and(written)?;
    super::expect_answers(report.unanswered())
}

/// The program that did the work of a run.
pub(super) fn worker(is_here: bool, run: &ServeReport) -> Worker {
    match is_here {
        true => Worker::Here(run.processor.server_s()),
        false => Worker::OwnOrElsewhere,
    }
}

/// This moment as `20261123-071500`.
fn date() -> String {
    let digits: String =
        pelton_gateway::date_time(super::now_s()).chars().filter(char::is_ascii_digit).collect();
    let (day, time) = digits.split_at(digits.len().min(8));
    format!("{day}-{time}")
}
