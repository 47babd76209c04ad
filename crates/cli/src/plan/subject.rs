//! The model of a plan: its outline, and how its weights lie in files where they are there.

use std::path::Path;

use pelton_llm::{LocalModel, ModelRef, stores};
use pelton_model::{Inspection, KvDtype, ModelFiles, ModelOutline, inspect};
use pelton_plan::Stored;

use crate::failure::{Failure, Result};
use crate::model;

/// The model of a plan.
pub(super) struct Subject {
    pub(super) name: String,
    pub(super) outline: ModelOutline,
    /// `None` where there is a configuration and no weights.
    pub(super) stored: Option<Stored>,
}

impl Subject {
    /// Finds a model on this machine and reads its configuration, or the header of its file.
    ///
    /// # Errors
    ///
    /// A model that is not on this machine, or that the configuration does not describe.
    pub(super) fn open(name: Option<&str>) -> Result<Self> {
        let reference = model::reference(name)?;
        let place = match &reference {
            ModelRef::Hub(_) => in_cache(name.unwrap_or_default())?,
            ModelRef::Path(path) => LocalModel::Path(path.clone()),
            other => model::resolve(other)?,
        };
        let name = reference.display_name();
        match &place {
            LocalModel::Path(path) if is_config(path) => Self::of_config(name, path),
            _ => Self::of_files(name, &place.open()?),
        }
    }

    fn of_config(name: String, path: &Path) -> Result<Self> {
        let outline = ModelOutline::of_config(path)?;
        // A file that is named alone is planned for by itself, a folder with the weights in it.
        let files = path.is_dir().then(|| ModelFiles::open(path).ok()).flatten();
        let stored = files.and_then(|files| stored(&inspect(&files, KvDtype::Bf16).ok()?));
        let folder =
            || path.parent()?.canonicalize().ok()?.file_name()?.to_str().map(str::to_owned);
        let name = if path.is_dir() { name } else { folder().unwrap_or(name) };
        Ok(Self { name, outline, stored })
    }

    fn of_files(name: String, files: &ModelFiles) -> Result<Self> {
        let outline = ModelOutline::of_files(files)?;
        let stored = stored(&inspect(files, KvDtype::Bf16)?);
        Ok(Self { name, outline, stored })
    }
}

/// Whether a path leads to a configuration of its own.
fn is_config(path: &Path) -> bool {
    let is_json = path.extension().is_some_and(|extension| extension == "json");
    (path.is_file() && is_json) || path.join("config.json").is_file()
}

/// A model of the hub that was downloaded.
fn in_cache(name: &str) -> Result<LocalModel> {
    let all = stores::list();
    let is_same = |known: &str| {
        known.eq_ignore_ascii_case(name)
            || known.strip_prefix(name).is_some_and(|rest| rest.starts_with([':', '@']))
    };
    match all.into_iter().find(|model| !model.is_partial && is_same(&model.name)) {
        Some(model) => Ok(LocalModel::Path(model.path)),
        None => {
            let hint = format!(
                "a plan needs its config.json alone: give the path of that file, or `pelton pull {name}`"
            );
            Err(Failure::new(format!("`{name}` is not on this machine")).hint(hint))
        }
    }
}

/// How the weights of these files lie; `None` where no format of the registry is near.
fn stored(model: &Inspection) -> Option<Stored> {
    let most = model.tensors.iter().max_by_key(|(_, totals)| totals.n_bytes);
    let named = most.and_then(|(dtype, _)| pelton_quant::for_name(dtype));
    let prevailing = match &model.quantization {
        None => named?,
        // Formats of checkpoints have no name in the registry: the nearest of integers counts.
        Some(quantization) => {
            let layouts = quantization.layouts.values();
            let (bytes, elements) = layouts.fold((0, 0), |(bytes, elements), totals| {
                (bytes + totals.n_bytes, elements + totals.n_elements)
            });
            let is_small = bytes.saturating_mul(8) < elements.saturating_mul(6);
            pelton_quant::for_name(if is_small { "q4_0" } else { "q8_0" })?
        }
    };
    let ignored = model.ignored.iter().flat_map(|ignored| ignored.parts.values());
    let ignored = ignored.map(|totals| totals.n_bytes).sum::<u64>();
    let file_bytes = model.n_bytes.saturating_sub(ignored);
    Some(Stored { prevailing, packed_bytes: model.weight_bytes, file_bytes })
}
