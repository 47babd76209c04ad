//! `pelton batch`: answers the requests of a file, and goes on where an earlier run ended.

mod files;

use std::io::Write;
use std::time::Instant;

use pelton_server::{BatchRunner, Counts, Ended, RunError, RunOptions, Served};
use serde_json::json;
use tokio::sync::watch;

use crate::args::BatchArgs;
use crate::failure::{Failure, Result};
use crate::flags::Chosen;
use crate::interrupt::Interrupts;
use crate::model;
use files::{Input, Output};

/// Runs the command.
pub(crate) fn batch(args: &BatchArgs) -> Result<()> {
    let chosen = args.chosen()?;
    // Files are looked at before a model is loaded, which takes long.
    let input = Input::open(&args.input)?;
    let mut output = Output::open(&args.output, &input)?;
    let options = RunOptions { n_parallel: args.n_parallel(&chosen), endpoint: None };
    let served = load(&chosen)?;
    let name = served.name().to_owned();
    let runner = BatchRunner::new(served.clone(), args.max_line.get().saturating_mul(1 << 20));
    let runtime = crate::connections::runtime()?;
    let started = Instant::now();
    let done = output.take_done();
    let others: Vec<String> =
        done.models().filter(|model| *model != name).map(|model| format!("`{model}`")).collect();
    if !others.is_empty() && !args.quiet {
        eprintln!(
            "note: {} has answers of {}, which are kept; `{name}` answers the lines that are left",
            args.output.display(),
            others.join(", ")
        );
    }
    let ran = runtime.block_on(async {
        let mut interrupts = Interrupts::listen()?;
        let (stop, stopped) = watch::channel(false);
        let watching = tokio::spawn(async move {
            interrupts.next().await;
            // The run may have ended meanwhile.
            let _ = stop.send(true);
            interrupts.next().await;
            std::process::exit(i32::from(crate::failure::INTERRUPTED));
        });
        let ran = runner.run(input.reader(), &done, &options, &mut output, stopped).await;
        watching.abort();
        Ok::<_, Failure>(ran)
    })?;
    drop(runtime);
    shut_down(&served);
    output.clear_bar();
    let (ended, counts) = ran.map_err(|error| failed(args, &error, output.counts()))?;
    let seconds = started.elapsed().as_secs_f64();
    report(args, &name, &ended, counts, seconds)
}

/// Loads the model to generate text or to make vectors, as its files or the flags say.
fn load(chosen: &Chosen) -> Result<Served> {
    let reference = model::reference(Some(&chosen.model))?;
    let runtime = chosen.runtime()?;
    let vectors = &chosen.vectors;
    if vectors.embeddings || model::resolve(&reference)?.is_embedding_model()? {
        chosen.warn_of_text();
        let options = chosen.embed_options();
        return Ok(Served::Vectors(model::load_embedder(&runtime, &reference, &options)?));
    }
    if vectors.pooling.is_some() || vectors.normalize.is_some() {
        let message = "`--pooling` and `--normalize` are for vectors, and this model is for text";
        return Err(Failure::new(message).hint("`--embeddings` makes its vectors"));
    }
    let llm = model::load(&runtime, &reference, &chosen.llm)?;
    chosen.warn_of_idle(llm.info());
    Ok(Served::Text(llm))
}

fn shut_down(served: &Served) {
    match served {
        Served::Text(llm) => llm.shutdown(false),
        Served::Vectors(embedder) => embedder.shutdown(),
    }
}

/// A file that could not be read or written: what is kept, and how to go on.
fn failed(args: &BatchArgs, error: &RunError, counts: Counts) -> Failure {
    let (input, output) = (args.input.display(), args.output.display());
    let kept = counts.kept + counts.completed + counts.failed;
    match error {
        RunError::Input(error) => Failure::new(format!("{input}: cannot be read: {error}")),
        RunError::Output(error) => Failure::write(&args.output, error)
            .hint(format!("{kept} results are kept; make room, and run the same command again")),
        RunError::OtherInput { .. } => Failure::new(format!("{input}: {error}"))
            .hint(format!("{output} has the results of other requests; name another file")),
        other => Failure::new(other.to_string()),
    }
}

fn report(
    args: &BatchArgs,
    model: &str,
    ended: &Ended,
    counts: Counts,
    seconds: f64,
) -> Result<()> {
    let Counts { total, kept, completed, failed } = counts;
    let word = match ended {
        Ended::Whole => "whole",
        Ended::Stopped => "stopped",
        Ended::Lost(_) | Ended::Forbidden(_) => "lost",
    };
    if args.json {
        let summary = json!({
            "model": model,
            "input": args.input.display().to_string(),
            "output": args.output.display().to_string(),
            "ended": word,
            "lines": counts,
            "seconds": seconds,
        });
        writeln!(std::io::stdout(), "{summary}").map_err(|error| Failure::stdout(&error))?;
    }
    if !args.quiet {
        let again = if kept > 0 { format!(", {kept} were there") } else { String::new() };
        eprintln!("{total} lines: {completed} answered, {failed} failed{again}, in {seconds:.1} s");
    }
    match ended {
        Ended::Whole => Ok(()),
        Ended::Stopped => {
            eprintln!("stopped; the same command answers the lines that are left");
            Err(Failure::interrupted())
        }
        Ended::Lost(why) | Ended::Forbidden(why) => Err(Failure::internal(why.clone())
            .hint("the results so far are kept; the same command answers the lines that are left")),
    }
}
