//! `pelton plan advise`; see [`pelton_plan::advise`].

use std::fmt::Write as _;
use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::num::NonZeroUsize;
use std::path::Path;

use pelton_bench::ablate::Round;
use pelton_bench::estimate::median;
use pelton_llm::BLOCK_TOKENS;
use pelton_plan::advise::{
    Advice, Figures, Goal, Phase, Relief, Scenario, Settings, Step, Wish, advise as advised,
    concurrent, scenarios,
};
use pelton_sim::report::Grouping;
use pelton_sim::trace::{Trace, TraceFile};
use serde::Serialize;

use super::excludes::Exclusions;
use super::recorded::Recorded;
use super::subject::Subject as Planned;
use crate::args::{AdviseArgs, plain_with, quoted};
use crate::bench::ablate::{Served, Subject, rounds};
use crate::failure::{Failure, Result};
use crate::flags::Chosen;
use crate::model;
use crate::stats::bytes;
use crate::usage::nearest;

/// Rounds of `--measure`.
const MEASURED_ROUNDS: usize = 3;
/// Most tokens of one step, as the server has it by default.
const STEP_TOKENS: usize = 512;
/// Most requests at once that the rate of a trace leads to.
const MOST_AT_ONCE: usize = 1024;

/// The printed report.
#[derive(Debug, Serialize)]
struct Report {
    model: String,
    hardware: String,
    /// Whether the numbers of the machine are noisy, where they were measured.
    is_noisy: bool,
    /// Whether the machine was measured; else times are bounds.
    is_measured: bool,
    scenario: Scenario,
    #[serde(flatten)]
    advice: Advice,
    /// Techniques that no server has together.
    excludes: Exclusions,
    /// With `--measure`, the measured gain of each step on top of those before; null for weights,
    /// and for steps that were not reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<Vec<Option<f64>>>,
    /// Whether the measurement ended before its last round.
    interrupted: bool,
}

/// Gains as far as they were measured.
struct Measured {
    gains: Vec<Option<f64>>,
    /// Ctrl-C, or the error of a server.
    ended: Result<()>,
}

/// Runs the command.
///
/// # Errors
///
/// A model, scenario, machine or trace that is unknown; a machine of unknown speed; settings that
/// are to be written although a limit does not hold.
pub(super) fn advise(args: &AdviseArgs) -> Result<()> {
    let subject = Planned::open(args.model().as_deref())?;
    if subject.outline.spec.layers.is_empty() {
        return Err(Failure::new(format!("{}: a model without layers", subject.name)));
    }
    subject.expect_generates("`pelton plan advise`")?;
    // Before anything is measured or printed.
    args.write.as_deref().map_or(Ok(()), check_place)?;
    let (hardware, is_noisy) = super::hardware(args.hardware.as_deref())?;
    let recorded = args.trace.as_deref().map(Recorded::open).transpose()?;
    let scenario = scenario(args, recorded.as_ref())?;
    let mut batch = scenario.batch;
    let wish = Wish {
        hardware: &hardware,
        memory_bytes: args.memory.unwrap_or(hardware.memory_bytes),
        weights: super::own_weights(&subject)?,
        scenario: &scenario,
        goal: args.goal.unwrap_or(scenario.goal),
        loss_percent: args.loss,
        price_per_hour: args.price_per_hour,
        block_tokens: BLOCK_TOKENS,
        step_tokens: STEP_TOKENS,
    };
    if let Some(recorded) = recorded.as_ref().filter(|_| args.batch.is_none()) {
        let most = recorded.n_requests().clamp(1, MOST_AT_ONCE);
        // Requests that all come at once are all there at once.
        let rate = recorded.rate().unwrap_or(f64::INFINITY);
        batch = concurrent(&subject.outline, &wish, rate, most).unwrap_or(batch);
    }
    let scenario = Scenario { batch, ..scenario.clone() };
    let wish = Wish { scenario: &scenario, ..wish };
    let advice = advised(&subject.outline, &wish).ok_or_else(|| {
        Failure::new("the speed of this machine is unknown")
            .hint("`pelton doctor` measures it, `--hardware` names another")
    })?;
    let measured = args.measure.then(|| measure(args, &scenario, &advice)).transpose()?;
    let (measured, ended) = match measured {
        Some(Measured { gains, ended }) => (Some(gains), ended),
        None => (None, Ok(())),
    };
    let report = Report {
        model: subject.name.clone(),
        hardware: hardware.words.clone(),
        is_noisy,
        is_measured: !hardware.products.is_empty(),
        scenario,
        advice,
        excludes: Exclusions::find(),
        measured,
        interrupted: ended.is_err(),
    };
    let text = match args.json {
        true => serde_json::to_string(&report)? + "\n",
        false => report.render(),
    };
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes()).map_err(|error| Failure::stdout(&error))?;
    if let Some(path) = &args.write {
        write(path, &report, &args.model().unwrap_or(subject.name))?;
    }
    ended
}

/// The workload: that of the scenario, changed by flags or a trace.
fn scenario(args: &AdviseArgs, recorded: Option<&Recorded>) -> Result<Scenario> {
    let all = scenarios();
    let names: Vec<&str> = all.iter().map(|scenario| scenario.name.as_str()).collect();
    let found = all.iter().find(|scenario| scenario.name == args.scenario);
    let mut scenario = found.cloned().ok_or_else(|| {
        let name = &args.scenario;
        let failure = Failure::new(format!("`--scenario {name}`: there are {}", names.join(", ")));
        failure.maybe_hint(
            nearest(name, names.iter().copied()).map(|n| format!("did you mean `{n}`?")),
        )
    })?;
    if let Some(recorded) = recorded {
        recorded.put(&mut scenario);
    }
    let set =
        |to: &mut usize, from: Option<NonZeroUsize>| *to = from.map_or(*to, NonZeroUsize::get);
    set(&mut scenario.input_tokens, args.input);
    set(&mut scenario.output_tokens, args.output);
    set(&mut scenario.batch, args.batch);
    scenario.shared_prefix = args.shared_prefix.unwrap_or(scenario.shared_prefix);
    scenario.acceptance = args.acceptance.unwrap_or(scenario.acceptance);
    Ok(scenario)
}

/// The measured gain of each step on top of those before; `None` for weights, which stay as they
/// are.
///
/// # Errors
///
/// A goal that no server shows, settings that no server has. An error of a server ends the
/// measurement and keeps the rounds before.
fn measure(args: &AdviseArgs, scenario: &Scenario, advice: &Advice) -> Result<Measured> {
    if advice.goal == Goal::Memory {
        let hint = "its bytes are those that are allocated; other goals are measured";
        return Err(Failure::new("`--measure`: the goal `memory` is no time").hint(hint));
    }
    let file = std::env::temp_dir().join(format!("pelton-advise-{}.txt", std::process::id()));
    let trace = requests(scenario, &file);
    let trace = trace.and_then(|()| Ok(Trace::File(TraceFile::open(file.clone())?)));
    let outcome = trace.and_then(|trace| stacked(args, scenario, advice, &trace));
    // The file is of no use any more, whatever came of it.
    drop(std::fs::remove_file(&file));
    outcome
}

fn stacked(
    args: &AdviseArgs,
    scenario: &Scenario,
    advice: &Advice,
    trace: &Trace,
) -> Result<Measured> {
    let model = args.model().unwrap_or_else(|| model::EMBEDDED.to_owned());
    let subject = |name: &str, settings: &[String]| -> Result<Subject> {
        let mut chosen = Chosen { model: model.clone(), ..Chosen::default() };
        chosen.llm.max_context = Some(scenario.input_tokens + scenario.output_tokens);
        let chosen = plain_with(chosen, settings)?;
        Ok(Subject { name: name.to_owned(), chosen, rounds: Vec::new() })
    };
    let mut subjects = vec![subject("plain", &[])?];
    let mut settings: Vec<String> = Vec::new();
    for step in advice.steps.iter().filter(|step| !step.settings.is_empty()) {
        settings.extend(step.settings.iter().cloned());
        subjects.push(subject(step.technique, &settings)?);
    }
    let served = Served {
        trace,
        n_requests: trace.n_requests(),
        clients: scenario.batch,
        grouping: Grouping { tenants: trace.tenants(), long_prompt_tokens: u32::MAX },
    };
    let ended = match rounds(&served, MEASURED_ROUNDS, &mut subjects) {
        Ok(true) => Err(Failure::interrupted()),
        other => other.map(drop),
    };
    let figure = |subject: &Subject| {
        let of = |round: &Round| match advice.goal {
            Goal::Latency => 1e3 / round.end_to_end_ms,
            _ => round.tokens_per_s,
        };
        median(&subject.rounds.iter().map(of).collect::<Vec<_>>())
    };
    let mut gains = subjects.windows(2).map(|pair| Some(figure(&pair[1])? / figure(&pair[0])?));
    let of = |step: &Step| if step.settings.is_empty() { None } else { gains.next().flatten() };
    Ok(Measured { gains: advice.steps.iter().map(of).collect(), ended })
}

/// Writes the requests of a scenario, three for each client.
fn requests(scenario: &Scenario, path: &Path) -> Result<()> {
    let Scenario { input_tokens, output_tokens, batch, shared_prefix, .. } = scenario;
    let shared = (*input_tokens as f64 * shared_prefix) as usize;
    let prefix = if shared > 0 { format!(" prefix=1:{shared}") } else { String::new() };
    let lines: String =
        (0..3 * batch).map(|at| format!("{at} {input_tokens} {output_tokens}{prefix}\n")).collect();
    // A file that is there already may be a link to another one.
    let written = File::create_new(path).and_then(|mut file| file.write_all(lines.as_bytes()));
    written.map_err(|error| Failure::write(path, &error))
}

impl Report {
    fn render(&self) -> String {
        let Self { scenario, advice, .. } = self;
        let noisy = if self.is_noisy { ", measured in a noisy minute" } else { "" };
        let bound =
            if self.is_measured { "" } else { "; peaks of a datasheet, so times are bounds" };
        let mut text = format!(
            "model      {}\nmachine    {}{noisy}{bound}\n\
             workload   {}: {} + {} tokens, {} at once, {:.0} % of prompts shared\n\
             goal       {}\n\n",
            self.model,
            self.hardware,
            scenario.words,
            scenario.input_tokens,
            scenario.output_tokens,
            scenario.batch,
            100.0 * scenario.shared_prefix,
            advice.goal.name(),
        );
        put(&mut text, &figures("plain", &advice.before));
        for (idx, step) in advice.steps.iter().enumerate() {
            let Step { technique, change, reason, gain, range, loss, .. } = step;
            let measured = self.measured.as_ref().and_then(|measured| measured[idx]);
            let measured = measured.map_or_else(String::new, |x| format!(", measured {x:.2}x"));
            put(
                &mut text,
                &format!(
                    "{}. {technique}: {change}\n   {gain:.2}x ({:.2} to {:.2}){measured}; {reason}",
                    idx + 1,
                    range.0,
                    range.1
                ),
            );
            if let Some(loss) = loss {
                put(&mut text, &format!("   loss: {loss}"));
            }
        }
        put(&mut text, &figures("advised", &advice.after));
        for out in &advice.left_out {
            put(&mut text, &format!("left out   {}: {}", out.technique, out.reason));
        }
        for check in &advice.checks {
            let holds = if check.holds { "yes" } else { "NO" };
            put(&mut text, &format!("limit      {}: {holds}", check.constraint));
        }
        for kept in &advice.kept {
            put(&mut text, &format!("limit      {kept}: yes"));
        }
        for Relief { constraint, change } in &advice.reliefs {
            put(&mut text, &format!("would do   {constraint}: {change}"));
        }
        if advice.reliefs.is_empty() && advice.checks.iter().any(|check| !check.holds) {
            put(&mut text, "would do   no single change of memory, quality or length");
        }
        text.push_str(&self.excludes.render());
        for (at, Phase { change, measure }) in advice.phases.iter().enumerate() {
            put(&mut text, &format!("phase {at:<4} {change}; measure {measure}"));
        }
        if self.interrupted {
            put(&mut text, "measured   not to the end: gains are of the rounds until then");
        }
        text
    }
}

fn figures(name: &str, figures: &Figures) -> String {
    let Figures { total_bytes, ttft_s, tpot_s, answer_s, output_tokens_per_s, cost_per_million } =
        *figures;
    let cost = cost_per_million.map(|cost| format!(", {cost:.3} per million tokens"));
    format!(
        "{name:<10} first token {:.1} ms, next ones {:.1} ms each, an answer {answer_s:.2} s, \
         {output_tokens_per_s:.1} tokens/s, {}{}",
        1e3 * ttft_s,
        1e3 * tpot_s,
        bytes(total_bytes),
        cost.unwrap_or_default()
    )
}

fn put(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("invariant: strings take everything");
}

/// The name of a model without its folder and its ending.
fn stem(model: &str) -> String {
    let path = Path::new(model);
    let name = match path.extension().is_some_and(|ending| ending == "gguf") {
        true => path.file_stem(),
        false => path.file_name(),
    };
    name.map_or("model".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// The beginning of the files that this command writes.
const WRITTEN: &str = "# Written by `pelton plan advise` for ";

/// Whether another run may replace the file at `path`: this command wrote it, or there is none.
fn is_own(path: &Path) -> std::io::Result<bool> {
    match std::fs::metadata(path) {
        // A pipe waits for a writer, and a device may have no end.
        Ok(found) if !found.is_file() => return Ok(false),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(true),
        found => found?,
    };
    let mut start = [0; WRITTEN.len()];
    match File::open(path)?.read_exact(&mut start) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        read => read.map(|()| start == WRITTEN.as_bytes()),
    }
}

/// Whether the file at `path` may be written: its folder is there, and nothing is lost.
fn check_place(path: &Path) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.map_or(Ok(true), |folder| std::fs::metadata(folder).map(|f| f.is_dir()));
    let folder = folder.and_then(|is_folder| match is_folder {
        true => is_own(path),
        false => Err(ErrorKind::NotADirectory.into()),
    });
    if folder.map_err(|error| Failure::write(path, &error))? {
        return Ok(());
    }
    let message =
        format!("`--write`: {} exists, and `pelton plan advise` did not write it", path.display());
    Err(Failure::new(message).hint("give another name, or move that file away"))
}

/// Writes the settings for the server.
fn write(path: &Path, report: &Report, model: &str) -> Result<()> {
    if let Some(broken) = report.advice.checks.iter().find(|check| !check.holds) {
        let message = format!("`--write`: a limit does not hold: {}", broken.constraint);
        return Err(
            Failure::new(message).hint("raise `--memory` or `--loss`, or shorten the requests")
        );
    }
    // Again, because measuring takes minutes.
    check_place(path)?;
    let Settings { weights, kv_dtype, max_running, max_context, prefix_cache, drafts } =
        &report.advice.settings;
    let mut text = format!("{WRITTEN}{}.\n", report.scenario.words);
    // A configuration stands for the folder that it lies in.
    let model = model.strip_suffix("config.json").map_or(model, |folder| match folder {
        "" => ".",
        folder => folder.trim_end_matches('/'),
    });
    let file = weights.as_ref().map(|format| format!("{}-{format}.gguf", stem(model)));
    if let Some((file, format)) = file.as_ref().zip(weights.as_ref()) {
        let command =
            format!("pelton convert {} {} --format {format}", quoted(model), quoted(file));
        // A name may have several lines, and a comment has one.
        put(&mut text, &format!("# {}", command.replace(char::is_control, " ")));
    }
    let name = serde_json::to_string(file.as_deref().unwrap_or(model))?;
    put(&mut text, &format!("model: {name}"));
    put(&mut text, &format!("kv_dtype: {kv_dtype}"));
    put(&mut text, &format!("max_running: {max_running}"));
    put(&mut text, &format!("max_context: {max_context}"));
    if !prefix_cache {
        put(&mut text, "prefix_cache: false");
    }
    if let Some(drafts) = drafts {
        put(&mut text, &format!("spec: auto\nspec_max: {drafts}"));
    }
    let written = pelton_tensor::PendingFile::create(path).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.publish()
    });
    written.map_err(|error| Failure::write(path, &error))
}
