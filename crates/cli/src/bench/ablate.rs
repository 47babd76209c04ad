//! `pelton bench ablate`; see [`pelton_bench::ablate`].

use pelton_bench::Pace;
use pelton_bench::ablate::{Report, Round, Variant};
use pelton_bench::load::{Config, drive};
use pelton_bench::record::{NoiseWatch, Worker};
use pelton_sim::report::{Distribution, Grouping, Report as RunReport};
use pelton_sim::trace::Trace;

use crate::args::BenchAblateArgs;
use crate::failure::{Failure, Result};
use crate::flags::Chosen;
use crate::interrupt::Interrupts;
use crate::{model, progress};

/// Requests that are served when no flag says how many.
const DEFAULT_REQUESTS: u64 = 32;

/// A server to be measured.
pub(crate) struct Subject {
    /// Its last technique, or `plain`.
    pub(crate) name: String,
    /// Its settings.
    pub(crate) chosen: Chosen,
    /// Its rounds so far.
    pub(crate) rounds: Vec<Round>,
}

/// The requests of each round.
pub(crate) struct Served<'a> {
    /// The requests.
    pub(crate) trace: &'a Trace,
    /// Requests of it that are served.
    pub(crate) n_requests: u64,
    /// Requests under way.
    pub(crate) clients: usize,
    /// How the report groups them.
    pub(crate) grouping: Grouping<'a>,
}

/// Runs the command.
///
/// # Errors
///
/// Techniques that are no settings, models that cannot be loaded, a trace that is wrong, a round
/// without any answer, Ctrl-C. Rounds that were measured before are reported.
pub(super) fn measure(args: &BenchAblateArgs) -> Result<()> {
    let why = "clients send a request once another has ended";
    args.workload.refuse(&["--rate", "--arrivals"], why)?;
    let place = model::path(&args.model());
    let trace = args.workload.trace(DEFAULT_REQUESTS, &[("-m", place.as_deref())])?;
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
    let served = Served {
        trace: &trace,
        n_requests: args.workload.n_requests(&trace),
        clients: args.clients(),
        grouping: args.workload.grouping(&trace),
    };
    let noise = NoiseWatch::begin();
    let ended = rounds(&served, args.rounds(), &mut subjects);
    let noise = noise.end(Worker::OwnOrElsewhere);
    if ended.is_err() && subjects[0].rounds.is_empty() {
        // Nothing was measured that a report could show.
        return ended.map(drop);
    }
    let n_stacked = techniques.len() + 1;
    let variant =
        |subject: &Subject| Variant { name: subject.name.clone(), rounds: subject.rounds.clone() };
    let stacked: Vec<Variant> = subjects[..n_stacked].iter().map(variant).collect();
    let first = stacked.iter().skip(1).take(1).cloned();
    let alone: Vec<Variant> = first.chain(subjects[n_stacked..].iter().map(variant)).collect();
    let name = model::reference(Some(&subjects[0].chosen.model))?.display_name();
    let workload = args.workload.describe(&trace, Pace::Concurrency(args.clients()));
    let mut report = Report::new(name, workload, &alone, &stacked);
    report.interrupted = *ended.as_ref().unwrap_or(&true);
    let printed = super::finish(&report, Report::render, noise, args.json);
    ended.and(printed)
}

/// Serves the workload with each subject once per round; true when Ctrl-C came before the end.
///
/// # Errors
///
/// Models that cannot be loaded, a trace that is wrong, a round without any answer.
pub(crate) fn rounds(
    served: &Served<'_>,
    n_rounds: usize,
    subjects: &mut [Subject],
) -> Result<bool> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::internal(format!("cannot start the runtime: {error}")))?;
    runtime.block_on(async {
        let mut interrupts = Interrupts::listen()?;
        for round in 1..=n_rounds {
            for subject in subjects.iter_mut() {
                let found = one(served, &subject.chosen, &mut interrupts).await;
                let found = found.map_err(|failure| failure.at(&subject.name))?;
                let Some(found) = found else { return Ok(true) };
                let (name, rate) = (&subject.name, found.tokens_per_s);
                eprintln!("round {round} of {n_rounds}  {name:<24} {rate:>8.1} tokens/s");
                subject.rounds.push(found);
            }
        }
        Ok(false)
    })
}

/// Loads a model and serves the workload once; `None` when Ctrl-C came before the end. A round without
/// any answer is an error.
async fn one(
    served: &Served<'_>,
    chosen: &Chosen,
    interrupts: &mut Interrupts,
) -> Result<Option<Round>> {
    let reference = model::reference(Some(&chosen.model))?;
    let llm = model::load(&chosen.runtime()?, &reference, &chosen.llm)?;
    let config = Config {
        n_requests: served.n_requests,
        pace: Pace::Concurrency(served.clients),
        default_slo: chosen.llm.choices.slo,
    };
    let bar = progress::steps(usize::try_from(config.n_requests).unwrap_or(0));
    let show = |at: pelton_bench::Progress<'_>| super::show(&bar, at);
    let run = drive(&llm, served.trace, &config, interrupts.next(), &show).await;
    bar.finish_and_clear();
    let run = run.map_err(super::failure)?;
    if run.is_interrupted {
        return Ok(None);
    }
    let report = RunReport::new(&run.ledger, served.grouping);
    super::expect_answers(report.unanswered().map(str::to_owned))?;
    let middle = |times: &Option<Distribution>| times.as_ref().map_or(0.0, |times| times.p50);
    Ok(Some(Round {
        tokens_per_s: report.all.output_tokens_per_s,
        ttft_ms: middle(&report.all.ttft_ms),
        end_to_end_ms: middle(&report.all.end_to_end_ms),
    }))
}
