//! Entries by name and alias.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::entry::Entry;
use super::routing::Rules;
use super::{ModelSpec, ModelsError};
use crate::error::ApiError;

/// Most models of a server.
const MOST_MODELS: usize = 256;
/// Longest name, in characters.
const MOST_CHARS: usize = 256;

/// All entries of a server at one time.
#[derive(Clone, Debug)]
pub(super) struct Directory {
    pub(super) entries: Vec<Arc<Entry>>,
    /// Names and aliases.
    names: HashMap<String, usize>,
    /// Rules that choose among them.
    pub(super) rules: Arc<Rules>,
}

impl Directory {
    pub(super) fn new(entries: Vec<Arc<Entry>>, rules: Arc<Rules>) -> Self {
        let names = entries.iter().enumerate();
        let names = names.flat_map(|(idx, entry)| entry.names().map(move |name| (name, idx)));
        let names = names.map(|(name, idx)| (name.clone(), idx)).collect();
        Self { entries, names, rules }
    }

    /// The entry of this name or alias, if there is one.
    pub(super) fn entry(&self, name: &str) -> Option<&Arc<Entry>> {
        self.names.get(name).map(|&idx| &self.entries[idx])
    }

    /// The entry that a request names, or the first one.
    ///
    /// # Errors
    ///
    /// Names the models that there are.
    pub(super) fn find(&self, asked: Option<&str>) -> Result<Arc<Entry>, ApiError> {
        let Some(asked) = asked else { return Ok(Arc::clone(&self.entries[0])) };
        match self.entry(asked) {
            Some(entry) => Ok(Arc::clone(entry)),
            None => {
                let names = self.entries.iter().map(|entry| entry.name.as_str());
                Err(ApiError::unknown_model(asked, names))
            }
        }
    }
}

/// Checks the names of models as [`check_names`] does.
pub(super) fn check(specs: &[ModelSpec]) -> Result<(), ModelsError> {
    let names = |spec: &ModelSpec| {
        std::iter::once(&spec.name).chain(&spec.aliases).cloned().collect::<Vec<_>>()
    };
    check_names(&specs.iter().map(names).collect::<Vec<_>>())
}

/// Refuses names that requests cannot hold or tell apart. Each model has a list of them: its name and
/// its aliases.
///
/// # Errors
///
/// See [`ModelsError`].
pub fn check_names(models: &[Vec<String>]) -> Result<(), ModelsError> {
    match models.len() {
        0 => return Err(ModelsError::None),
        1..=MOST_MODELS => {}
        n => return Err(ModelsError::TooMany { n }),
    }
    let mut seen = HashSet::new();
    for names in models {
        for name in names {
            let is_decent = !name.chars().any(char::is_control)
                && (1..=MOST_CHARS).contains(&name.chars().count());
            if !is_decent {
                return Err(ModelsError::BadName { name: name.escape_debug().to_string() });
            }
            if !seen.insert(name) {
                return Err(ModelsError::SharedName { name: name.clone() });
            }
        }
    }
    Ok(())
}
