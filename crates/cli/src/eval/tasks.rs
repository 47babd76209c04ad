//! `pelton eval tasks`; see [`pelton_bench::quality::tasks`].

use pelton_bench::Watch;
use pelton_bench::quality::tasks::{Report, Task, measure};

use super::{Named, context, read};
use crate::args::EvalTasksArgs;
use crate::failure::Result;
use crate::interrupt::StopFlag;
use crate::texts::Texts;
use crate::{bench, progress};

/// Most tokens of a question with its answer, so that keys and values of a long context take no memory.
const MOST_TOKENS: usize = 4096;

/// Runs the command.
///
/// # Errors
///
/// Files that cannot be read, a line that is no question, a model that cannot be loaded, Ctrl-C.
pub(super) fn ask(args: &EvalTasksArgs) -> Result<()> {
    let chosen = args.machine.chosen();
    let task = |file: &std::path::PathBuf| {
        let task = Task::parse(&file.display().to_string(), &read(file)?);
        let task = task.map_err(bench::failure)?;
        Ok(match args.limit() {
            Some(limit) => task.first(limit),
            None => task,
        })
    };
    let tasks: Vec<Task> = args.files.iter().map(task).collect::<Result<_>>()?;
    let named = Named::open(&args.model, chosen.llm.quantize)?;
    let texts = Texts::of(&named.place, &named.files)?;
    let context = context(&chosen, std::iter::once(&named))?.min(MOST_TOKENS);
    let mut subject = named.load(&chosen.runtime()?, &chosen.llm)?;
    let stop = StopFlag::listen()?;
    let bar = progress::steps(0);
    let watch = Watch { is_stopped: &|| stop.is_set(), progress: &|at| bench::show(&bar, at) };
    let report = measure(&mut subject, &texts.tokenizer, &tasks, context, watch);
    bar.finish_and_clear();
    let report = report.map_err(bench::failure)?;
    bench::print(&report, Report::render, args.json, report.interrupted)
}
