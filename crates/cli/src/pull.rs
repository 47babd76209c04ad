//! `pelton pull`: downloads a model, or the rest of it, without running it.

use std::cell::Cell;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use pelton_llm::LlmError;
use pelton_llm::hub::{Hub, HubConfig, HubError, HubId};
use serde::Serialize;

use crate::args::PullArgs;
use crate::failure::{Failure, Result};
use crate::interrupt::Leave;
use crate::model;
use crate::progress::Progress;
use crate::stats::bytes;

/// The answer of `--json`: the model that was pulled.
#[derive(Debug, Serialize)]
struct Report {
    name: String,
    path: String,
    /// Bytes of the files that had to be fetched, those of an earlier attempt included.
    fetched_bytes: u64,
    seconds: f64,
}

/// Runs the command.
pub(crate) fn pull(args: &PullArgs) -> Result<()> {
    let started = Instant::now();
    let id = match HubId::parse(&args.model) {
        Ok(id) => id,
        Err(_) if Path::new(&args.model).exists() => {
            let message = format!("`{}` is on this machine already", args.model);
            return Err(Failure::new(message).hint(format!("`pelton run -m {}`", args.model)));
        }
        Err(HubError::BadId { why, .. }) => {
            let (name, why) = (args.model.clone(), why.to_owned());
            return Err(LlmError::UnknownModel { name, why }.into());
        }
        Err(error) => return Err(error.into()),
    };
    let config = HubConfig { n_streams: usize::from(args.connections), ..HubConfig::from_env() };
    let _leave = Leave::with(model::interrupted(&id.to_string()))?;
    let (bar, fetched_bytes) = (Progress::new(), Cell::new(0));
    let path = Hub::new(config).download(&id, &mut |at| {
        fetched_bytes.set(at.done_bytes);
        bar.downloading(at);
    });
    bar.clear();
    let path = path?;
    let report = Report {
        name: id.to_string(),
        path: path.display().to_string(),
        fetched_bytes: fetched_bytes.get(),
        seconds: started.elapsed().as_secs_f64(),
    };
    let line = if args.json { serde_json::to_string(&report)? } else { report.path.clone() };
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{line}").map_err(|error| Failure::stdout(&error))?;
    if !args.json {
        eprintln!("{}", report.words());
    }
    Ok(())
}

impl Report {
    /// One line, which says how to go on.
    fn words(&self) -> String {
        let Self { name, fetched_bytes, seconds, .. } = self;
        let done = match fetched_bytes {
            0 => format!("{name} was here already"),
            n => format!("{name}: {} in {seconds:.1} s", bytes(*n)),
        };
        format!("{done}; `pelton run -m {name}` runs it")
    }
}
