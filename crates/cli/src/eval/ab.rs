//! `pelton eval ab`; see [`pelton_bench::quality::ab`].

use pelton_bench::Watch;
use pelton_bench::quality::Config;
use pelton_bench::quality::ab::{Report, measure};
use pelton_bench::record::{NoiseWatch, Worker};

use super::{Named, context, read};
use crate::args::EvalAbArgs;
use crate::failure::{Failure, Result};
use crate::interrupt::StopFlag;
use crate::{bench, model, progress};

/// Runs the command.
///
/// # Errors
///
/// As of `pelton eval` with a reference; a page that cannot be written.
pub(super) fn compare(args: &EvalAbArgs) -> Result<()> {
    let places = [&args.a, &args.b].map(|name| model::path(name));
    let inputs = [
        ("--text", Some(args.text.as_path())),
        ("A", places[0].as_deref()),
        ("B", places[1].as_deref()),
    ];
    bench::check_page(("--html", args.html.as_deref()), &inputs)?;
    let chosen = args.machine.chosen();
    let text = read(&args.text)?;
    let (a, b) = (Named::open(&args.a, None)?, Named::open(&args.b, chosen.llm.quantize)?);
    let tokens = b.tokens(&text, &args.text, &args.scored)?;
    a.check_same(&b, &tokens, (&text, &args.text), &args.scored)?;
    let at_text = |failure: Failure| failure.at(&args.text.display().to_string());
    tokens.check().map_err(|error| at_text(bench::failure(error)))?;
    let context = context(&chosen, [&a, &b].into_iter())?;
    let config = Config::new(args.scored.window, args.scored.stride, context);
    let (config, answers) = (config.map_err(bench::failure)?, args.answers());
    let n_tokens = answers.prompt_tokens + answers.answer_tokens;
    if n_tokens > context {
        return Err(Failure::new(format!(
            "`--prompt-tokens` and `--answer-tokens` are {n_tokens} together: expected at most the \
             context of {context} tokens"
        )));
    }
    let runtime = chosen.runtime()?;
    let (mut subject_a, mut subject_b) =
        (a.load(&runtime, &chosen.llm)?, b.load(&runtime, &chosen.llm)?);
    let stop = StopFlag::listen()?;
    let bar = progress::steps(0);
    let watch = Watch { is_stopped: &|| stop.is_set(), progress: &|at| bench::show(&bar, at) };
    let both = [&mut subject_a, &mut subject_b];
    let noise = NoiseWatch::begin();
    let report = measure(both, &tokens, (&config, answers, args.bounds()), watch);
    let noise = noise.end(Worker::OwnOrElsewhere);
    bar.finish_and_clear();
    let report = report.map_err(|error| at_text(bench::failure(error)))?;
    let report = report.ok_or_else(Failure::interrupted_early)?;
    if let Some(file) = &args.html {
        bench::write_page(&report, noise, file)?;
    }
    bench::finish(&report, Report::render, noise, args.json)?;
    let exceeded = report.gates.iter().filter(|gate| !gate.passed).map(|gate| {
        let (figure, unit) = (gate.figure, gate.unit);
        format!("{figure} is {:.6} {unit}, above `{} {}`", gate.value, gate.flag, gate.bound)
    });
    let exceeded: Vec<String> = exceeded.collect();
    if exceeded.is_empty() { Ok(()) } else { Err(Failure::gate(exceeded.join("; "))) }
}
