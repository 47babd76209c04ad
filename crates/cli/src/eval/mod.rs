//! `pelton eval`; see [`pelton_bench::quality`].

mod ab;
mod needle;
mod tasks;

use std::path::Path;

use pelton_base::limits;
use pelton_bench::Watch;
use pelton_bench::quality::{Config, Report, Subject, Tokens, measure};
use pelton_llm::{LlmOptions, LocalModel, ModelRef, Runtime};
use pelton_model::{ActivationGroup, ModelFiles, RoundTo};

use crate::args::{EvalArgs, EvalCommand, ScoredArgs};
use crate::bench;
use crate::failure::{Failure, Result};
use crate::flags::Chosen;
use crate::interrupt::StopFlag;
use crate::texts::Texts;
use crate::{model, progress};

/// Runs the command.
///
/// # Errors
///
/// A model that cannot be loaded, a text that cannot be read or is too short, models whose
/// vocabularies differ, numbers out of range, a gate that is exceeded, Ctrl-C.
pub(crate) fn eval(args: &EvalArgs) -> Result<()> {
    match &args.command {
        Some(EvalCommand::Ab(args)) => return ab::compare(args),
        Some(EvalCommand::Tasks(args)) => return tasks::ask(args),
        Some(EvalCommand::Needle(args)) => return needle::hide(args),
        None => {}
    }
    let chosen = args.machine.chosen();
    let file = args.text();
    let text = read(file)?;
    let own = Named::open(args.model(), chosen.llm.quantize)?;
    let theirs = args.reference.as_deref().map(|name| Named::open(name, None)).transpose()?;
    let tokens = own.tokens(&text, file, &args.scored)?;
    if let Some(theirs) = &theirs {
        theirs.check_same(&own, &tokens, (&text, file), &args.scored)?;
    }
    let at_text = |failure: Failure| failure.at(&file.display().to_string());
    tokens.check().map_err(|error| at_text(bench::failure(error)))?;
    let context = context(&chosen, [Some(&own), theirs.as_ref()].into_iter().flatten())?;
    let config = Config::new(args.scored.window, args.scored.stride, context);
    let config = config.map_err(bench::failure)?;

    let runtime = chosen.runtime()?;
    let mut subject = own.load(&runtime, &chosen.llm)?;
    // Larger groups of activations are for the model alone, so that their cost can be measured.
    let exact = LlmOptions { activation_group: ActivationGroup::default(), ..chosen.llm };
    let mut reference = theirs.as_ref().map(|named| named.load(&runtime, &exact)).transpose()?;
    let stop = StopFlag::listen()?;
    let bar = progress::steps(0);
    let watch = Watch { is_stopped: &|| stop.is_set(), progress: &|at| bench::show(&bar, at) };
    let report = measure(&mut subject, reference.as_mut(), &tokens, &config, watch);
    bar.finish_and_clear();
    let report = report.map_err(bench::failure)?.ok_or_else(Failure::interrupted_early)?;
    bench::print(&report, Report::render, args.json, report.interrupted)?;
    check_gates(&report, args)
}

/// Refuses a model that is further from its reference than asked for. A value that is no number
/// is not within any bound.
fn check_gates(report: &Report, args: &EvalArgs) -> Result<()> {
    let Some(against) = &report.against else { return Ok(()) };
    let gates = [
        ("the divergence", against.kl_divergence.value, "--max-kl", args.max_kl, "nats per token"),
        (
            "the increase of perplexity",
            against.perplexity_increase_percent.value,
            "--max-ppl-increase",
            args.max_ppl_increase,
            "percent",
        ),
    ];
    let exceeded: Vec<String> = gates
        .into_iter()
        .filter_map(|(name, value, flag, bound, unit)| {
            let bound = bound.filter(|bound| value.is_nan() || value > *bound)?;
            Some(format!("{name} is {value:.6} {unit}, above `{flag} {bound}`"))
        })
        .collect();
    if exceeded.is_empty() { Ok(()) } else { Err(Failure::gate(exceeded.join("; "))) }
}

/// The longest context that all these models have and the flags allow, in tokens.
fn context<'a>(chosen: &Chosen, models: impl Iterator<Item = &'a Named>) -> Result<usize> {
    let mut context = chosen.llm.max_context.unwrap_or(usize::MAX);
    for named in models {
        context = context.min(named.files.spec()?.max_context);
    }
    Ok(context)
}

fn read(file: &Path) -> Result<String> {
    let text = pelton_tensor::read_limited_text(file, limits::PROMPT_BYTES as u64);
    text.map_err(|error| {
        Failure::new(format!("{}: {error}", file.display())).hint("expected a text file in UTF-8")
    })
}

/// A model's files before its weights are loaded.
struct Named {
    reference: ModelRef,
    files: ModelFiles,
    place: LocalModel,
}

impl Named {
    /// Opens the files, to be rounded where a format is given.
    fn open(name: &str, quantize: Option<RoundTo>) -> Result<Self> {
        let reference: ModelRef = model::reference(Some(name))?;
        let place = model::resolve(&reference)?;
        let files = model::open(&reference, quantize)?;
        model::expect_decoder(&reference, &files)?;
        Ok(Self { reference, files, place })
    }

    fn load(&self, runtime: &Runtime, options: &LlmOptions) -> Result<Subject> {
        let decoder = model::load_decoder(runtime, &self.files, options)?;
        Ok(Subject { name: self.reference.display_name(), decoder })
    }

    fn tokens(&self, text: &str, file: &Path, scored: &ScoredArgs) -> Result<Tokens> {
        let texts = Texts::of(&self.place, &self.files)?;
        Tokens::new(&texts.tokenizer, text, scored.limit())
            .map_err(|error| Failure::from(error).at(&file.display().to_string()))
    }

    /// Refuses to compare models that read the text as different tokens.
    fn check_same(
        &self,
        own: &Self,
        tokens: &Tokens,
        (text, file): (&str, &Path),
        scored: &ScoredArgs,
    ) -> Result<()> {
        let [own_name, name] = [own, self].map(|named| named.reference.display_name());
        let sizes = [&own.files, &self.files].map(|files| files.config().vocab_size);
        if sizes[0] != sizes[1] {
            return Err(Failure::new(format!(
                "{own_name} has a vocabulary of {} tokens and the reference {name} one of {}: \
                 expected the same vocabulary",
                sizes[0], sizes[1]
            )));
        }
        let theirs = self.tokens(text, file, scored)?;
        if theirs == *tokens {
            return Ok(());
        }
        let at = tokens.tokens.iter().zip(&theirs.tokens).position(|(a, b)| a != b);
        let at = at.unwrap_or_else(|| tokens.tokens.len().min(theirs.tokens.len()));
        Err(Failure::new(format!(
            "{own_name} and the reference {name} read the text as different tokens, first at token \
             {at}: expected the same vocabulary"
        )))
    }
}
