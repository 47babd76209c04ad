//! `pelton bench ablate`; see [`pelton_bench::ablate`].

use pelton_bench::Pace;
use pelton_bench::ablate::{Report, Round, Variant};
use pelton_bench::load::{Config, drive};
use pelton_sim::report::Report as Served;
use pelton_sim::trace::Trace;

use crate::args::BenchAblateArgs;
use crate::failure::{Failure, Result};
use crate::flags::Chosen;
use crate::interrupt::Interrupts;
use crate::{model, progress};

/// Requests that are served when no flag says how many.
const DEFAULT_REQUESTS: u64 = 32;

/// A server to be measured.
struct Subject {
    name: String,
    chosen: Chosen,
    rounds: Vec<Round>,
}

/// Runs the command.
///
/// # Errors
///
/// Techniques that are no settings, models that cannot be loaded, a trace that is wrong, Ctrl-C.
pub(super) fn measure(args: &BenchAblateArgs) -> Result<()> {
    let trace = args.workload.trace(DEFAULT_REQUESTS)?;
    let techniques = args.techniques();
    let subject = |name: &str, techniques: &[String]| -> Result<Subject> {
        Ok(Subject { name: name.to_owned(), chosen: args.chosen(techniques)?, rounds: Vec::new() })
    };
    // The plain server, one technique after the other, and each but the first alone.
    let mut subjects = vec![subject("plain", &[])?];
    for (idx, name) in techniques.iter().enumerate() {
        subjects.push(subject(name, &techniques[..=idx])?);
    }
    for name in techniques.iter().skip(1) {
        subjects.push(subject(name, std::slice::from_ref(name))?);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::internal(format!("cannot start the runtime: {error}")))?;
    let is_interrupted = runtime.block_on(rounds(args, &trace, &mut subjects))?;
    let n_stacked = techniques.len() + 1;
    let variant =
        |subject: &Subject| Variant { name: subject.name.clone(), rounds: subject.rounds.clone() };
    let stacked: Vec<Variant> = subjects[..n_stacked].iter().map(variant).collect();
    let first = stacked.iter().skip(1).take(1).cloned();
    let alone: Vec<Variant> = first.chain(subjects[n_stacked..].iter().map(variant)).collect();
    let name = model::reference(Some(&subjects[0].chosen.model))?.display_name();
    let workload = format!("{}, {} clients", args.workload.describe(&trace), args.clients());
    let mut report = Report::new(name, workload, &alone, &stacked);
    report.interrupted = is_interrupted;
    super::finish(&report, Report::render, args.json)
}

/// Serves the workload with each subject once per round; true when Ctrl-C came before the end.
async fn rounds(args: &BenchAblateArgs, trace: &Trace, subjects: &mut [Subject]) -> Result<bool> {
    let mut interrupts = Interrupts::listen()?;
    for round in 1..=args.rounds() {
        for subject in subjects.iter_mut() {
            let chosen = &subject.chosen;
            let reference = model::reference(Some(&chosen.model))?;
            let llm = model::load(&chosen.runtime()?, &reference, &chosen.llm)?;
            let config = Config {
                n_requests: args.workload.n_requests(trace),
                pace: Pace::Concurrency(args.clients()),
                default_slo: chosen.llm.choices.slo,
            };
            let bar = progress::steps(usize::try_from(config.n_requests).unwrap_or(0));
            let show = |at: pelton_bench::Progress<'_>| super::show(&bar, at);
            let run = drive(&llm, trace, &config, interrupts.next(), &show).await;
            bar.finish_and_clear();
            let run = run.map_err(super::failure)?;
            if run.is_interrupted {
                return Ok(true);
            }
            let served = Served::new(&run.ledger, args.workload.grouping(trace));
            let middle = |times: &Option<pelton_sim::report::Distribution>| {
                times.as_ref().map_or(0.0, |times| times.p50)
            };
            let result = Round {
                tokens_per_s: served.all.output_tokens_per_s,
                ttft_ms: middle(&served.all.ttft_ms),
                end_to_end_ms: middle(&served.all.end_to_end_ms),
            };
            let (name, rate) = (&subject.name, result.tokens_per_s);
            eprintln!("round {round} of {}  {name:<24} {rate:>8.1} tokens/s", args.rounds());
            subject.rounds.push(result);
        }
    }
    Ok(false)
}
