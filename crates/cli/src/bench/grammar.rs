//! `pelton bench grammar`; see [`pelton_bench::grammar`].

use std::sync::Arc;

use pelton_bench::Watch;
use pelton_bench::grammar::{Config, Report, gather, measure as run, synthetic};
use pelton_bench::record::{NoiseWatch, Worker};

use crate::args::BenchGrammarArgs;
use crate::failure::{Failure, Result};
use crate::interrupt::StopFlag;
use crate::texts::Texts;
use crate::{model, progress};

/// Runs the command.
///
/// # Errors
///
/// A model or schemas that cannot be read, schemas that are all refused, a walk that got stuck,
/// Ctrl-C.
pub(super) fn measure(args: &BenchGrammarArgs) -> Result<()> {
    let schemas = gather(args.schemas.as_deref()).map_err(super::failure)?;
    let (name, tokenizer) = match args.vocab {
        Some(n_tokens) => {
            (format!("{n_tokens} made tokens"), synthetic(n_tokens).map_err(super::failure)?)
        }
        None => {
            let reference = model::reference(args.model.as_deref())?;
            let name = args.model.clone().unwrap_or_else(|| model::EMBEDDED.to_owned());
            (name, Texts::open(&model::resolve(&reference)?)?.tokenizer)
        }
    };
    let config = Config { walks: args.walks(), max_tokens: args.max_tokens() };
    let stop = StopFlag::listen()?;
    eprintln!("measuring {} schemas on {name}", schemas.len());
    let bar = progress::steps(0);
    let watch = Watch { is_stopped: &|| stop.is_set(), progress: &|at| super::show(&bar, at) };
    let noise = NoiseWatch::begin();
    let report = run(&name, &Arc::new(tokenizer), &schemas, &config, watch);
    let noise = noise.end(Worker::OwnOrElsewhere);
    bar.finish_and_clear();
    let report = report.map_err(super::failure)?;
    let finished = super::finish(&report, Report::render, noise, args.json);
    if let Some(message) = report.stuck() {
        return Err(Failure::internal(message));
    }
    finished?;
    report.refused().map_or(Ok(()), |message| Err(Failure::new(message)))
}
