//! `pelton eval needle`; see [`pelton_bench::quality::needle`].

use pelton_bench::Watch;
use pelton_bench::quality::needle::{Config, Report, measure};

use super::{Named, context, read};
use crate::args::EvalNeedleArgs;
use crate::failure::{Failure, Result};
use crate::interrupt::StopFlag;
use crate::texts::Texts;
use crate::{bench, progress};

/// The shortest length without `--lengths`; each further one is twice as long.
const SHORTEST: usize = 512;
/// The longest of these, in tokens.
const LONGEST: usize = 32_768;

/// Runs the command.
///
/// # Errors
///
/// A text that cannot be read, numbers out of range, a model that cannot be loaded, Ctrl-C.
pub(super) fn hide(args: &EvalNeedleArgs) -> Result<()> {
    let chosen = args.machine.chosen();
    let text = read(&args.text)?;
    let named = Named::open(&args.model, chosen.llm.quantize)?;
    let texts = Texts::of(&named.place, &named.files)?;
    let context = context(&chosen, std::iter::once(&named))?;
    let mut lengths = args.lengths.clone();
    if lengths.is_empty() {
        let doubled = std::iter::successors(Some(SHORTEST), |length| Some(2 * length));
        lengths = doubled.take_while(|length| *length <= context.min(LONGEST)).collect();
    }
    if lengths.is_empty() {
        lengths.push(context);
    }
    let config = Config { lengths, depths: args.depths.clone(), trials: args.trials() };
    config.check(context).map_err(bench::failure)?;
    let mut subject = named.load(&chosen.runtime()?, &chosen.llm)?;
    let stop = StopFlag::listen()?;
    let bar = progress::steps(0);
    let watch = Watch { is_stopped: &|| stop.is_set(), progress: &|at| bench::show(&bar, at) };
    let report = measure(&mut subject, &texts.tokenizer, &text, &config, watch);
    bar.finish_and_clear();
    let report =
        report.map_err(|error| bench::failure(error).at(&args.text.display().to_string()))?;
    if report.cells.is_empty() {
        return Err(Failure::interrupted_early());
    }
    bench::print(&report, Report::render, args.json, report.interrupted)
}
