//! `pelton show`: one model of this machine: where it is from, where it lies, and what it is.

use std::io::Write;

use pelton_llm::stores::{self, StoredModel};
use pelton_model::{Inspection, KvDtype, ModelFiles};
use serde::Serialize;

use crate::args::ShowArgs;
use crate::failure::{Failure, Result};
use crate::inspect::parameters;
use crate::model;
use crate::stats::bytes;

/// The facts about one model, as shown.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    stored: StoredModel,
    /// `None` where the files are not whole or cannot be loaded.
    model: Option<Inspection>,
    /// Why it cannot be loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Runs the command.
pub(crate) fn show(args: &ShowArgs) -> Result<()> {
    let found = matching(&args.model, stores::list());
    if found.is_empty() {
        if std::path::Path::new(&args.model).exists()
            || [model::EMBEDDED, model::STORY_NAME].contains(&args.model.as_str())
        {
            let hint = format!("`pelton inspect {}` describes it", args.model);
            return Err(Failure::new(format!("`{}` is in no cache", args.model)).hint(hint));
        }
        return Err(model::not_here(&args.model));
    }
    let reports: Vec<Report> = found.into_iter().map(Report::new).collect();
    let mut text = String::new();
    for (i, report) in reports.iter().enumerate() {
        if args.json {
            text.push_str(&serde_json::to_string(report)?);
            text.push('\n');
        } else {
            text.push_str(if i > 0 { "\n" } else { "" });
            text.push_str(&report.render());
        }
    }
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes()).map_err(|error| Failure::stdout(&error))
}

/// The model of this name, or every model of the repository of this name.
fn matching(name: &str, all: Vec<StoredModel>) -> Vec<StoredModel> {
    let is_same = |model: &StoredModel| model.name.eq_ignore_ascii_case(name);
    if all.iter().any(is_same) {
        return all.into_iter().filter(is_same).collect();
    }
    let is_of = |model: &StoredModel| {
        model.name.strip_prefix(name).is_some_and(|rest| rest.starts_with([':', '@']))
    };
    all.into_iter().filter(is_of).collect()
}

impl Report {
    fn new(stored: StoredModel) -> Self {
        if stored.is_partial {
            return Self { stored, model: None, error: None };
        }
        let described = ModelFiles::open(&stored.path)
            .and_then(|files| pelton_model::inspect(&files, KvDtype::Bf16));
        match described {
            Ok(model) => Self { stored, model: Some(model), error: None },
            Err(error) => Self { stored, model: None, error: Some(error.to_string()) },
        }
    }

    fn render(&self) -> String {
        let stored = &self.stored;
        let mut rows = vec![
            ("name", stored.name.clone()),
            ("from", stored.store.to_string()),
            ("format", stored.format.clone()),
            ("size", bytes(stored.n_bytes)),
            ("path", stored.path.display().to_string()),
        ];
        rows.extend(stored.commit.iter().map(|commit| ("commit", commit.clone())));
        if let Some(model) = &self.model {
            rows.push(("architecture", model.architecture.clone()));
            rows.push(("parameters", parameters(model)));
            rows.push(("context", format!("{} tokens", model.max_context)));
        }
        rows.extend(self.error.iter().map(|why| ("cannot load", why.clone())));
        let next = match stored.is_partial {
            true => format!("not whole; `pelton pull {}` goes on", stored.name),
            false => format!("pelton run -m {}", stored.name),
        };
        rows.push(("run", next));
        rows.iter().map(|(name, value)| format!("{name:<15}{value}\n")).collect()
    }
}
