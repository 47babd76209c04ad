//! `pelton bench offline`; see [`pelton_bench::offline`].

use pelton_bench::Watch;
use pelton_bench::model::Loaded;
use pelton_bench::offline::{Plan, Report};
use pelton_bench::record::{NoiseWatch, Worker};

use crate::args::BenchOfflineArgs;
use crate::failure::{Failure, Result};
use crate::interrupt::StopFlag;
use crate::{memory, model};

/// Runs the command.
///
/// # Errors
///
/// A model that cannot be loaded, flags that ask for more than model or memory hold, Ctrl-C.
pub(super) fn measure(args: &BenchOfflineArgs) -> Result<()> {
    let chosen = args.model.chosen();
    let place = model::path(&chosen.model);
    super::check_outputs(&[("--profile", args.profile.as_deref())], &[("-m", place.as_deref())])?;
    let reference = model::reference(Some(&chosen.model))?;
    let files = model::open(&reference, chosen.llm.quantize)?;
    model::expect_decoder(&reference, &files)?;
    let max_context = chosen.llm.max_context.unwrap_or(files.spec()?.max_context);
    // Everything that can be refused without the weights is refused before they are loaded.
    let plan = Plan::new(&args.config(), max_context).map_err(super::failure)?;
    let runtime = chosen.runtime()?;
    let loaded = Loaded {
        name: reference.display_name(),
        architecture: files.config().architecture.clone(),
        decoder: model::load_decoder(&runtime, &files, &chosen.llm)?,
    };
    let stop = StopFlag::listen()?;
    let watch = Watch { is_stopped: &|| stop.is_set(), progress: &|at| eprintln!("{}", at.label) };
    let noise = NoiseWatch::begin();
    let report = pelton_bench::offline::measure(loaded, plan, watch).map_err(super::failure)?;
    let noise = noise.end(Worker::OwnOrElsewhere);
    let mut report = report.ok_or_else(Failure::interrupted_early)?;
    report.peak_bytes = memory::peak_bytes();
    let written = super::write_profile(args.profile.as_deref(), &report.profiles);
    super::finish(&report, Report::render, noise, args.json).and(written)
}
