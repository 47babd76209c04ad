//! `pelton rm`: removes models from the hub cache.

use std::io::Write;

use pelton_llm::hub::{HubConfig, HubId};
use pelton_llm::stores::{self, Store, StoredModel};

use crate::args::RmArgs;
use crate::failure::{Failure, Result};
use crate::model;
use crate::stats::bytes;

/// Runs the command; a name that is wrong is found before anything is removed.
pub(crate) fn rm(args: &RmArgs) -> Result<()> {
    let (config, found) = (HubConfig::from_env(), stores::list());
    let ids = args.models.iter().map(|name| removable(name, &found));
    let ids: Vec<HubId> = ids.collect::<Result<_>>()?;
    for id in &ids {
        let n_bytes =
            stores::remove(&config, id)?.ok_or_else(|| model::not_here(&id.to_string()))?;
        let mut stdout = std::io::stdout().lock();
        writeln!(stdout, "removed {id} ({})", bytes(n_bytes))
            .map_err(|error| Failure::stdout(&error))?;
    }
    Ok(())
}

/// The model of this name, where it is Pelton's to remove.
fn removable(name: &str, found: &[StoredModel]) -> Result<HubId> {
    let stored = found.iter().find(|model| model.name == name);
    match stored.map(|model| (model.store, model)) {
        Some((Store::HuggingFace, _)) => {}
        Some((Store::Ollama, _)) => {
            return Err(Failure::new(format!("`{name}` belongs to Ollama"))
                .hint(format!("`ollama rm {name}` removes it")));
        }
        Some((store, model)) => {
            return Err(Failure::new(format!("`{name}` belongs to {store}"))
                .hint(format!("it is the file {}", model.path.display())));
        }
        None if std::path::Path::new(name).exists() => {
            return Err(Failure::new(format!("`{name}` is a file or folder of yours"))
                .hint("`pelton rm` removes only what `pelton list` shows"));
        }
        None => {}
    }
    let id = HubId::parse(name).map_err(|_| model::not_here(name))?;
    let is_here = found.iter().any(|model| {
        let rest = model.name.strip_prefix(&id.repo);
        model.store == Store::HuggingFace
            && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '@']))
    });
    if is_here { Ok(id) } else { Err(model::not_here(name)) }
}
