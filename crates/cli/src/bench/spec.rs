//! `pelton bench spec`; see [`pelton_bench::spec`].

use pelton_base::SamplingParams;
use pelton_bench::Watch;
use pelton_bench::spec::{Config, Report, gather};
use pelton_llm::{LlmOptions, SpecConfig, SpecMethod};

use crate::args::{BenchSpecArgs, SpecArgs};
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
    let options = options(args)?;
    let reference = model::reference(args.model.model.as_deref())?;
    let config = Config {
        methods: options.further_methods.clone(),
        batches: args.batches(),
        max_tokens: args.max_tokens(),
        max_drafts: args.spec_max(),
        rounds: args.rounds(),
        sampling,
        is_chat: !model::is_embedded(&reference),
    };
    let llm = model::load(&model::runtime(args.model.threads())?, &reference, &options)?;

    let stop = StopFlag::listen()?;
    eprintln!("comparing {}, {} rounds", config.names().join(", "), config.rounds);
    let bar = progress::steps(0);
    let watch = Watch { is_stopped: &|| stop.is_set(), progress: &|at| super::show(&bar, at) };
    let report = pelton_bench::spec::measure(&llm, &config, &texts, watch);
    bar.finish_and_clear();
    let report = report.map_err(super::failure)?;
    let differing = report.differing();
    let is_interrupted = report.interrupted && differing.is_none();
    super::print(&report, Report::render, args.json, is_interrupted)?;
    differing.map_or(Ok(()), |message| Err(Failure::internal(message)))
}

/// The model with all methods that are to be compared.
fn options(args: &BenchSpecArgs) -> Result<LlmOptions> {
    let mut args_of_all = SpecArgs { draft_model: args.draft_model.clone(), ..SpecArgs::default() };
    let mut methods: Vec<SpecMethod> = Vec::new();
    let mut exit_layers = None;
    for choice in &args.methods {
        if choice.method == SpecMethod::Off {
            return Err(Failure::new(
                "`--methods`: plain decoding (`off`) is always measured; leave it out",
            ));
        }
        if methods.contains(&choice.method) {
            return Err(Failure::new(format!("`--methods`: `{choice}` is the second of its kind")));
        }
        methods.push(choice.method);
        exit_layers = exit_layers.or(choice.exit_layers);
        if choice.draft_model.is_some() {
            args_of_all.spec = Some(choice.clone());
        }
    }
    if methods.is_empty() {
        methods = all_that_can_run(args.draft_model.is_some());
    }
    let mut options = args_of_all.apply(model::options(&args.model))?;
    options.choices.max_running = args.batches().last().copied().unwrap_or(1);
    options.spec.method = SpecMethod::Off;
    options.spec.max_drafts = args.spec_max();
    options.spec.exit_layers = exit_layers;
    options.further_methods = methods;
    Ok(options)
}

/// Every method that needs nothing, `draft` where there is a model, and the choice among them.
fn all_that_can_run(has_draft_model: bool) -> Vec<SpecMethod> {
    let can_run = |method: &SpecMethod| match method {
        // The number of layers has no default.
        SpecMethod::Off | SpecMethod::EarlyExit => false,
        SpecMethod::Draft => has_draft_model,
        &method => !SpecConfig { method, ..SpecConfig::default() }.proposers().is_empty(),
    };
    SpecMethod::ALL.iter().copied().filter(can_run).collect()
}
