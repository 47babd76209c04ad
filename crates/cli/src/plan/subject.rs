//! The model of a plan: its outline, and how its weights lie in files where they are there.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use pelton_llm::hub::{Description, GgufHead, Hub, HubConfig, HubError, HubId};
use pelton_llm::stores::StoredModel;
use pelton_llm::{LocalModel, ModelRef, stores};
use pelton_model::{Inspection, KvDtype, ModelFiles, ModelOutline, inspect};
use pelton_plan::Stored;
use tempfile::TempDir;

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
    /// Finds a model on this machine, else on the hub, and reads its configuration, or the header
    /// of its file.
    ///
    /// # Errors
    ///
    /// A model that is nowhere, or that the configuration does not describe.
    pub(super) fn open(name: Option<&str>) -> Result<Self> {
        let reference = model::reference(name)?;
        let place = match &reference {
            ModelRef::Hub(id) => match in_cache(name.unwrap_or_default()) {
                Some(path) => LocalModel::Path(path),
                None => return Self::of_hub(id),
            },
            ModelRef::Path(path) => LocalModel::Path(path.clone()),
            other => model::resolve(other)?,
        };
        let name = reference.display_name();
        match &place {
            LocalModel::Path(path) if is_config(path) => Self::of_config(name, path),
            _ => Self::of_files(name, &place.open()?),
        }
    }

    /// Refuses what was asked for where the model generates nothing.
    ///
    /// # Errors
    ///
    /// A model that computes vectors of texts.
    pub(super) fn expect_generates(&self, asked: &str) -> Result<()> {
        if self.outline.spec.generates() {
            return Ok(());
        }
        let why = format!("{asked}: {} computes vectors of texts and generates nothing", self.name);
        Err(Failure::new(why).hint("`pelton plan MODEL` says what it takes"))
    }

    /// Asks the hub for the description of a model, and for none of its weights.
    fn of_hub(id: &HubId) -> Result<Self> {
        let name = id.to_string();
        match Hub::new(HubConfig::from_env()).describe(id).map_err(refused)? {
            Description::Config(path) => {
                Ok(Self { name, outline: ModelOutline::of_config(&path)?, stored: None })
            }
            Description::Whole(path) => Self::of_files(name, &ModelFiles::open(&path)?),
            Description::Headers(heads) => {
                let (_folder, files) = hollow(&heads)?;
                let mut subject = Self::of_files(name, &files)?;
                subject.outline.path = PathBuf::from(&heads[0].file);
                Ok(subject)
            }
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
fn in_cache(name: &str) -> Option<PathBuf> {
    let is_same = |known: &str| {
        known.eq_ignore_ascii_case(name)
            || known.strip_prefix(name).is_some_and(|rest| rest.starts_with([':', '@']))
    };
    let is_there = |model: &StoredModel| !model.is_partial && is_same(&model.name);
    stores::list().into_iter().find(is_there).map(|model| model.path)
}

/// The failure of a description that cannot be had.
fn refused(error: HubError) -> Failure {
    let is_offline = matches!(error, HubError::Offline { .. });
    let failure = Failure::from(error);
    if !is_offline {
        return failure;
    }
    failure.hint(
        "a plan needs its config.json or the header of its GGUF file: without HF_HUB_OFFLINE it is \
         fetched, and the path of such a file will do",
    )
}

/// Writes the beginnings of files, with a hole in place of the weights of each, and opens them as a
/// model whose weights nothing may read. The files vanish with the folder.
fn hollow(heads: &[GgufHead]) -> Result<(TempDir, ModelFiles)> {
    let failed = |place: &Path, error: std::io::Error| Failure::write(place, &error);
    let folder = TempDir::with_prefix("pelton-plan-")
        .map_err(|error| failed(&std::env::temp_dir(), error))?;
    for head in heads {
        let path = folder.path().join(&head.file);
        let write = || {
            let mut file = File::create_new(&path)?;
            file.write_all(&head.start)?;
            file.set_len(head.n_bytes)
        };
        write().map_err(|error| failed(&path, error))?;
    }
    let first = heads.first().ok_or_else(|| Failure::internal("a model without files"))?;
    let files = ModelFiles::open(&folder.path().join(&first.file))?;
    Ok((folder, files))
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
