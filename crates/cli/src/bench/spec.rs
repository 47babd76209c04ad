//! `pelton bench spec`; see [`pelton_bench::spec`].

use pelton_base::SamplingParams;
use pelton_bench::Watch;
use pelton_bench::record::{NoiseWatch, Worker};
use pelton_bench::spec::{Config, Report, gather};

use crate::args::BenchSpecArgs;
use crate::failure::{Failure, Result};
use crate::interrupt::StopFlag;
use crate::{model, progress};

/// Runs the command.
///
/// # Errors
///
/// A model that cannot be loaded, texts that cannot be read, flags that contradict each other,
/// tokens that differ from plain decoding, Ctrl-C.
pub(super) fn measure(args: &BenchSpecArgs) -> Result<()> {
    let sampling = SamplingParams { temperature: args.temperature, ..SamplingParams::default() };
    sampling.validate().map_err(|error| {
        Failure::new(format!("`--{}` must be {}, got {}", error.param, error.expected, error.got))
    })?;
    let texts = gather(args.prompts.as_deref()).map_err(super::failure)?;
    let chosen = args.chosen()?;
    let reference = model::reference(Some(&chosen.model))?;
    let config = Config {
        methods: chosen.llm.further_methods.clone(),
        batches: args.batches(),
        max_tokens: args.max_tokens(),
        max_drafts: chosen.llm.spec.max_drafts,
        rounds: args.rounds(),
        sampling,
        is_chat: !model::is_embedded(&reference),
    };
    let llm = model::load(&chosen.runtime()?, &reference, &chosen.llm)?;

    let stop = StopFlag::listen()?;
    eprintln!("comparing {}, {} rounds", config.names().join(", "), config.rounds);
    let bar = progress::steps(0);
    let watch = Watch { is_stopped: &|| stop.is_set(), progress: &|at| super::show(&bar, at) };
    let noise = NoiseWatch::begin();
    let report = pelton_bench::spec::measure(&llm, &config, &texts, watch);
    let noise = noise.end(Worker::OwnOrElsewhere);
    bar.finish_and_clear();
    let report = report.map_err(super::failure)?;
    let differing = report.differing();
    let finished = super::finish(&report, Report::render, noise, args.json);
    differing.map_or(finished, |message| Err(Failure::internal(message)))
}
