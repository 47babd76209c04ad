//! The layers of an unfinished folder, so that a run that was killed can be gone on with.
//!
//! A layer counts once its file is complete: the list is replaced by renaming. It says for which
//! source, options and texts it is; another run refuses it. One process at a time has the folder, by a
//! lock that ends with the process.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use pelton_model::ModelFiles;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::{MatrixReport, Options, QuantizeError, Result, Samples};

/// Name of the list.
const FILE: &str = "pelton-progress.json";
/// Most bytes of it: a thousand for each of 250,000 matrices.
const MOST_BYTES: u64 = 250 << 20;

/// A file of tensors that is complete.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct LayerDone {
    pub(crate) tensors: Vec<String>,
    pub(crate) n_bytes: u64,
    pub(crate) n_quantized_bytes: u64,
    pub(crate) n_weights: u64,
    /// Vectors that differ from the source's.
    pub(crate) vectors: Vec<String>,
    pub(crate) reports: Vec<MatrixReport>,
}

#[derive(Deserialize, Serialize)]
struct Listed {
    /// Of source, options and texts.
    identity: String,
    layers: Vec<LayerDone>,
}

/// The list, and the lock on its folder.
pub(crate) struct Progress {
    folder: PathBuf,
    listed: Listed,
    _lock: File,
}

/// Makes the folder, or finds the one that was left.
///
/// # Errors
///
/// When another process writes it, or when it was begun for something else.
pub(crate) fn begin(folder: &Path, target: &Path, identity: String) -> Result<Progress> {
    let refuse =
        |why: &str| QuantizeError::Partial { folder: folder.to_owned(), why: why.to_owned() };
    if folder.symlink_metadata().is_err() {
        fs::create_dir(folder).map_err(QuantizeError::io(target))?;
    }
    let lock = File::open(folder).map_err(QuantizeError::io(folder))?;
    if lock.try_lock().is_err() {
        return Err(refuse("another process writes here"));
    }
    let list = folder.join(FILE);
    let listed = match list.exists() {
        false => Listed { identity, layers: Vec::new() },
        true => {
            let bytes = pelton_tensor::read_limited(&list, MOST_BYTES);
            let bytes = bytes.map_err(QuantizeError::io(&list))?;
            let listed: Listed = serde_json::from_slice(&bytes)
                .map_err(|error| refuse(&format!("`{FILE}` cannot be read: {error}")))?;
            if listed.identity != identity {
                return Err(refuse(
                    "it was begun with another source, text or options: remove it to begin anew",
                ));
            }
            listed
        }
    };
    Ok(Progress { folder: folder.to_owned(), listed, _lock: lock })
}

impl Progress {
    /// Layers that are done, in their order.
    pub(crate) fn layers(&self) -> &[LayerDone] {
        &self.listed.layers
    }

    /// Adds a layer whose file is complete.
    pub(crate) fn add(&mut self, layer: LayerDone) -> Result<()> {
        self.listed.layers.push(layer);
        let (list, next) = (self.folder.join(FILE), self.folder.join(format!("{FILE}.next")));
        let text = serde_json::to_string(&self.listed).expect("invariant: JSON");
        fs::write(&next, text).map_err(QuantizeError::io(&list))?;
        fs::rename(&next, &list).map_err(QuantizeError::io(&list))
    }

    /// Removes the list, once the folder is complete.
    pub(crate) fn remove(&self) -> Result<()> {
        let list = self.folder.join(FILE);
        match list.exists() {
            true => fs::remove_file(&list).map_err(QuantizeError::io(&list)),
            false => Ok(()),
        }
    }
}

/// A digest of everything that decides which bytes are written.
pub(crate) fn identity(files: &ModelFiles, options: &Options, samples: Option<&Samples>) -> String {
    let mut hash = Xxh3::new();
    hash.update(concat!(env!("CARGO_PKG_VERSION"), "\n").as_bytes());
    hash.update(format!("{options:?}\n").as_bytes());
    if let Some(folder) = files.folder() {
        // The layers' output depends on it, too.
        hash.update(&fs::read(folder.join("config.json")).unwrap_or_default());
    }
    let tensors = files.tensors();
    for view in tensors.names().into_iter().filter_map(|name| tensors.get(name)) {
        hash.update(format!("{} {} {:?}\n", view.name, view.dtype.name(), view.shape).as_bytes());
        hash.update(view.data);
    }
    for number in samples.into_iter().flat_map(Samples::numbers) {
        hash.update(&number.to_le_bytes());
    }
    format!("{:032x}", hash.digest128())
}
