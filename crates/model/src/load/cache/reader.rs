//! Reading a cache: all of it or nothing.
//!
//! ```text
//! map ─> head ─> is it ours? ─> table ─> is every matrix there? ─> checksums ─> weights by recipe
//!       └─────────── microseconds, and a few pages ───────────┘   └ every byte ┘
//! ```

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use pelton_tensor::{MappedFile, TensorError};

use super::checksum;
use super::head::Head;
use super::identity::Identity;
use super::rejected::Rejected;
use super::table::{self, Entry};
use crate::device::PackedForm;
use crate::load::plan::{Part, recipe};

/// A matrix that the plan asks for.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    recipe: String,
    n: usize,
    k: usize,
}

impl Wanted {
    pub(super) fn new(parts: &[Part<'_>]) -> Self {
        let (n, k) = (parts.iter().map(Part::n).sum(), parts.first().map_or(0, Part::k));
        Self { recipe: recipe(parts), n, k }
    }

    #[cfg(test)]
    pub(super) fn of(recipe: &str, n: usize, k: usize) -> Self {
        Self { recipe: recipe.to_owned(), n, k }
    }
}

/// Every matrix of the file at `path` by recipe, verified and mapped.
///
/// # Errors
///
/// Why the file is not believed.
pub(super) fn read<W>(
    path: &Path,
    identity: &Identity,
    wanted: &[Wanted],
    form: &dyn PackedForm<W>,
    progress: &dyn Fn(u64, u64),
) -> Result<BTreeMap<String, W>, Rejected> {
    let file = MappedFile::open(path).map_err(|error| match error {
        TensorError::Io { source, .. } => match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Rejected::Missing,
            _ => Rejected::Unreadable(source.to_string()),
        },
        error => Rejected::Unreadable(error.to_string()),
    })?;
    let file = Arc::new(file);
    let head = Head::read(file.bytes())?;
    head.check_identity(identity)?;
    let data_end = usize::try_from(head.table_start).unwrap_or(usize::MAX);
    let entries = table::read(head.table(file.bytes())?, head.n_entries, data_end)?;
    let weights = restore(&file, &entries, wanted, form)?;
    verify(&file, &entries, form, progress)?;
    Ok(weights)
}

/// The weights, if they are those that the plan asks for.
fn restore<W>(
    file: &Arc<MappedFile>,
    entries: &[Entry],
    wanted: &[Wanted],
    form: &dyn PackedForm<W>,
) -> Result<BTreeMap<String, W>, Rejected> {
    let by_recipe: BTreeMap<&str, &Entry> =
        entries.iter().map(|entry| (entry.recipe.as_str(), entry)).collect();
    if by_recipe.len() != wanted.len() || entries.len() != wanted.len() {
        return Err(Rejected::malformed("number of matrices", wanted.len(), entries.len()));
    }
    let mut weights = BTreeMap::new();
    for Wanted { recipe, n, k } in wanted {
        let reject = |why| Rejected::Matrix { recipe: recipe.clone(), why };
        let entry = by_recipe.get(recipe.as_str()).ok_or_else(|| reject("it is not there"))?;
        if (entry.n, entry.k) != (*n, *k) {
            return Err(reject("it has another shape"));
        }
        let weight = form
            .restore(&entry.layout, [*n, *k], file, entry.range.clone())
            .ok_or_else(|| reject("its layout is unknown or has another size"))?;
        weights.insert(recipe.clone(), weight);
    }
    Ok(weights)
}

/// Compares every checksum, and so brings every page into memory.
fn verify<W>(
    file: &MappedFile,
    entries: &[Entry],
    form: &dyn PackedForm<W>,
    progress: &dyn Fn(u64, u64),
) -> Result<(), Rejected> {
    let n_total_bytes = entries.iter().map(|entry| entry.range.len() as u64).sum();
    let mut n_bytes = 0;
    for entry in entries {
        let bytes = &file.bytes()[entry.range.clone()];
        if checksum::of_matrix(bytes, &|n, f| form.for_each(n, f)) != entry.checksum {
            let why = "its bytes are not those of its checksum";
            return Err(Rejected::Matrix { recipe: entry.recipe.clone(), why });
        }
        n_bytes += bytes.len() as u64;
        progress(n_bytes, n_total_bytes);
    }
    Ok(())
}
