//! `pelton bench model`; see [`pelton_bench::model`].

use pelton_bench::Watch;
use pelton_bench::model::{Config, Loaded, Plan, Report};
use pelton_bench::record::{NoiseWatch, Worker};

use crate::args::BenchModelArgs;
use crate::failure::{Failure, Result};
use crate::interrupt::StopFlag;
use crate::model;

/// Runs the command.
///
/// # Errors
///
/// A model that cannot be loaded, flags that ask for more than model or memory hold, Ctrl-C.
pub(super) fn measure(args: &BenchModelArgs) -> Result<()> {
    let chosen = args.model.chosen();
    let place = model::path(&chosen.model);
    super::check_outputs(&[("--profile", args.profile.as_deref())], &[("-m", place.as_deref())])?;
    let reference = model::reference(Some(&chosen.model))?;
    let files = model::open(&reference, chosen.llm.quantize)?;
    model::expect_decoder(&reference, &files)?;
    let max_context = chosen.llm.max_context.unwrap_or(files.spec()?.max_context);
    let config = Config {
        prompt: args.prompt(),
        generate: args.generate(),
        batches: args.batches(),
        verify: args.verify(),
        contexts: args.contexts(),
        rounds: args.rounds(),
        profile: args.profile.is_some(),
    };
    // Everything that can be refused without the weights is refused before they are loaded.
    let plan = Plan::new(&config, max_context).map_err(super::failure)?;
    let runtime = chosen.runtime()?;
    let loaded = Loaded {
        name: reference.display_name(),
        architecture: files.config().architecture.clone(),
        decoder: model::load_decoder(&runtime, &files, &chosen.llm)?,
    };
    let stop = StopFlag::listen()?;
    let watch = Watch { is_stopped: &|| stop.is_set(), progress: &|at| eprintln!("{}", at.label) };
    let noise = NoiseWatch::begin();
    let report = pelton_bench::model::measure(loaded, &plan, watch).map_err(super::failure)?;
    let noise = noise.end(Worker::OwnOrElsewhere);
    let report = report.ok_or_else(Failure::interrupted_early)?;
    let written = super::write_profile(args.profile.as_deref(), &report.profiles);
    super::finish(&report, Report::render, noise, args.json).and(written)
}
