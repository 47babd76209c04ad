//! `pelton bench`: flags to configurations, measurements to tables or JSON.

pub(crate) mod ablate;
mod grammar;
mod kernels;
mod load;
mod model;
mod offline;
mod outputs;
mod reports;
mod serve;
mod sim;
mod spec;
mod sweep;

use std::io::Write;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use indicatif::ProgressBar;
use pelton_bench::page::page;
use pelton_bench::profile::{StepProfile, chrome_trace};
use pelton_bench::record::{BesideBaseline, Noise, Record, Recorded, Reported};
use pelton_bench::{BenchError, Progress};
use serde::Serialize;

use crate::args::BenchCommand;
use crate::doctor;
use crate::failure::{Failure, Result};
pub(crate) use outputs::{Named, check_outputs, check_page};

/// Runs the command.
pub(crate) fn bench(command: &BenchCommand) -> Result<()> {
    match command {
        BenchCommand::Kernels(args) => kernels::run(args),
        BenchCommand::Model(args) => model::measure(args),
        BenchCommand::Sim(args) => sim::simulate(args),
        BenchCommand::Load(args) => load::load(args),
        BenchCommand::Serve(args) => serve::measure(args),
        BenchCommand::Spec(args) => spec::measure(args),
        BenchCommand::Grammar(args) => grammar::measure(args),
        BenchCommand::Offline(args) => offline::measure(args),
        BenchCommand::Sweep(args) => sweep::measure(args),
        BenchCommand::Ablate(args) => ablate::measure(args),
        BenchCommand::Compare(args) => reports::compare(args),
        BenchCommand::Report(args) => reports::report(args),
    }
}

/// A failed measurement as a failure of the program.
pub(crate) fn failure(error: BenchError) -> Failure {
    match error {
        BenchError::Invalid { message, hint: Some(hint) } => Failure::new(message).hint(hint),
        BenchError::Failed(message) => Failure::internal(message),
        BenchError::Output(error) => Failure::stdout(&error),
        error => Failure::from(error),
    }
}

/// Writes steps for Chrome's profiler, where a file is named.
///
/// # Errors
///
/// A file that cannot be written.
fn write_profile(file: Option<&Path>, profiles: &[StepProfile]) -> Result<()> {
    let Some(file) = file else { return Ok(()) };
    reports::write(file, &(serde_json::to_string(&chrome_trace(profiles))? + "\n"))
}

/// Runs what sends requests to a server, on a thread and a runtime of its own.
///
/// # Errors
///
/// A system that gives neither, and those of `send`.
fn generate<T: Send>(send: impl AsyncFnOnce() -> Result<T> + Send) -> Result<T> {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime
            .map_err(|error| Failure::internal(format!("cannot start the runtime: {error}")))?;
        runtime.block_on(send())
    };
    pelton_bench::on_generator(run).map_err(failure)?
}

/// Shows each step of a measurement on a bar.
pub(crate) fn show(bar: &ProgressBar, at: Progress<'_>) {
    bar.set_length(at.n_steps as u64);
    bar.set_position(at.n_done as u64);
    bar.set_message(at.label.to_owned());
}

/// Prints the report of a benchmark, in the common format of all or as it renders itself, and what
/// else ran meanwhile.
///
/// # Errors
///
/// As of [`print`].
pub(crate) fn finish<R: Reported>(
    report: &R,
    render: fn(&R) -> String,
    noise: Option<Noise>,
    as_json: bool,
) -> Result<()> {
    let record = record(report, noise);
    let text = match as_json {
        true => serde_json::to_string(&record)? + "\n",
        false => {
            let reads = record.header().reads.filter(BesideBaseline::differs);
            let reads = reads.map(|reads| reads.words() + "\n");
            let noise = noise.map(|noise| format!("the run was in {}\n", noise.words()));
            render(report) + &reads.unwrap_or_default() + &noise.unwrap_or_default()
        }
    };
    write(&text, report.is_interrupted())
}

/// Refuses a run without an answer, for this reason.
fn expect_answers(unanswered: Option<String>) -> Result<()> {
    unanswered
        .map_or(Ok(()), |why| Err(Failure::internal(format!("no request was answered: {why}"))))
}

/// A report with the machine and the command.
fn record<R: Reported>(report: &R, noise: Option<Noise>) -> Record<'_, R> {
    let command = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    Record::new(report, (doctor::machine(), noise), command, now_s())
}

/// Writes the page of one report.
///
/// # Errors
///
/// A page that cannot be drawn or written.
pub(crate) fn write_page<R: Reported>(report: &R, noise: Option<Noise>, file: &Path) -> Result<()> {
    let text = serde_json::to_string(&record(report, noise))?;
    let recorded = Recorded::parse(R::KIND, &text).map_err(|error| Failure::of(&error))?;
    let name = format!("pelton {}", env!("CARGO_PKG_VERSION"));
    let page = page(&[(name, recorded)]).map_err(failure)?;
    reports::write(file, &page.html)
}

/// Seconds since 1970.
fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Prints a report: as one JSON object, or as it renders itself.
///
/// # Errors
///
/// A closed or full standard output; after a Ctrl-C, also that the report is incomplete.
pub(crate) fn print<R: Serialize>(
    report: &R,
    render: fn(&R) -> String,
    as_json: bool,
    is_interrupted: bool,
) -> Result<()> {
    let text = if as_json { serde_json::to_string(report)? + "\n" } else { render(report) };
    write(&text, is_interrupted)
}

/// Writes to standard output.
fn write(text: &str, is_interrupted: bool) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    written.map_err(|error| Failure::stdout(&error))?;
    if is_interrupted { Err(Failure::interrupted()) } else { Ok(()) }
}
