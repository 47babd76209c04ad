//! A cache of packed weights beside the model, mapped by the next start.
//!
//! Packing reads every stored byte, moves it and writes it: seconds per gigabyte, at every start.
//! With a cache the first start also writes what it packed to a file; a later one maps that file,
//! verifies it at the speed of memory, and computes with the mapped bytes where they are. There is
//! one copy of the weights, in the system's cache, and processes share it.
//!
//! # The format `pelton-packed`, version 1
//!
//! Little endian; the drawing of each part stands in [`head`] and [`table`].
//!
//! ```text
//! 0         head     96 bytes, zeros up to 4096
//! 4096      data     the matrices, each at a multiple of 4096
//! ...       table    one entry per matrix, at the end, so that a writer need not know it before
//! ```
//!
//! Norms and biases are not in it: they are kilobytes and come from the model's own files, which
//! are opened anyway.
//!
//! # What is believed
//!
//! Nothing. A file is used if *all* of this holds, and is otherwise ignored with a warning that
//! says why, and replaced:
//!
//! | is it ... | by |
//! |---|---|
//! | such a file, whole | magic, version, its own length |
//! | undamaged | XXH3-64 of the head, of the table, and of each matrix |
//! | for this build | [`layout_version`](crate::PackedForm::layout_version) of the device |
//! | for this load | the compute kind, rank and number of ranks |
//! | of this model | the fingerprint of the source, see [`identity`] |
//! | complete | for every matrix of the plan its recipe (names, types, shapes, order of rows) and size |
//!
//! Checksums find accidents, not attackers: a person who can write the cache can choose the
//! weights, just as a person who can write the model can. No damaged or forged file can do more
//! than that.
//!
//! The file is written under no name and put in place when it is on the disk, see
//! [`PendingFile`]. A folder that cannot be written to or a full disk is
//! a warning, and the load goes on.
//!
//! Bytes and operations: a hit reads each packed byte once (which also brings it in from the disk)
//! and hashes it on all threads.
//!
//! Considered and not taken: serializing norms and biases too (the source must be opened for its
//! vocabulary anyway); a table in front (its size depends on the layouts, which are known last);
//! BLAKE3 (slower, and strong only against those who could recompute it); verifying lazily at the
//! first use (a damaged page would be found in the middle of an answer).
//!
//! A file that is shortened while it is mapped ends the process, as with any mapped file; nothing
//! here ever does that.

mod checksum;
mod head;
mod identity;
mod reader;
mod rejected;
mod table;
#[cfg(test)]
mod tests;
mod writer;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pelton_tensor::PendingFile;

use super::plan::{Part, recipe};
use crate::device::Device;
use crate::files::{ModelFiles, ModelKind};
use identity::Identity;
use reader::Wanted;
use rejected::Rejected;
use writer::Writer;

pub(super) use identity::LoadKind;

/// Where matrices begin: whole pages, so that no two matrices share one.
const PAGE: usize = 4096;

/// Where packed weights are kept.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum PackedCache {
    /// `MODEL.gguf.pelton-packed` beside a GGUF file, `pelton.packed` inside a model folder.
    Beside,
    /// A file in this folder, which is made if it is missing; its name holds the model's.
    ///
    /// The folder must be as trustworthy as the model.
    Folder(PathBuf),
}

impl PackedCache {
    /// The file that keeps the weights of this model; `None` for the model inside the binary.
    ///
    /// Each rank of a model that is split over `load.n_ranks` keeps its own.
    fn path(&self, files: &ModelFiles, load: &LoadKind) -> Option<PathBuf> {
        let mut path = match (self, files.kind()) {
            (_, ModelKind::Embedded) => return None,
            (Self::Beside, ModelKind::HfFolder) => files.path().join("pelton.packed"),
            (Self::Beside, ModelKind::Gguf) => suffixed(files.path(), ".pelton-packed"),
            (Self::Folder(folder), _) => {
                // Models of one name in different folders are different models.
                let full = std::fs::canonicalize(files.path());
                let full = full.unwrap_or_else(|_| files.path().to_owned());
                let name = full.file_name().unwrap_or_else(|| "model".as_ref());
                let tag = checksum::of_text(&full.to_string_lossy());
                suffixed(&folder.join(name), &format!("-{tag:016x}.pelton-packed"))
            }
        };
        if load.n_ranks > 1 {
            path = suffixed(&path, &format!(".{}of{}", load.rank, load.n_ranks));
        }
        Some(path)
    }
}

fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// The cache of one load.
pub(super) enum Cache<B: Device> {
    /// No cache was asked for, or this model and device cannot have one.
    Off,
    /// Matrices by recipe, mapped and verified.
    Hit(BTreeMap<String, B::Weight>),
    /// To be written.
    Filling { writer: Writer<PendingFile>, path: PathBuf },
}

impl<B: Device> Cache<B> {
    /// Opens the cache of a model and verifies it, or begins a new one.
    ///
    /// `progress` is called with the bytes verified so far and the bytes of all.
    pub(super) fn open(
        asked: Option<&PackedCache>,
        files: &ModelFiles,
        device: &B,
        load: &LoadKind,
        matrices: &[&[Part<'_>]],
        progress: &dyn Fn(u64, u64),
    ) -> Self {
        let Some(asked) = asked else { return Self::Off };
        let (Some(path), Some(form)) = (asked.path(files, load), device.packed_form()) else {
            tracing::info!("packed weights are not cached: not for this model and device");
            return Self::Off;
        };
        let identity = Identity::new(files.tensors(), form.layout_version(), load);
        let wanted: Vec<Wanted> = matrices.iter().map(|parts| Wanted::new(parts)).collect();
        match reader::read(&path, &identity, &wanted, form, progress) {
            Ok(weights) => {
                tracing::info!(file = %path.display(), "packed weights: cache hit");
                return Self::Hit(weights);
            }
            Err(Rejected::Missing) => {
                tracing::info!(file = %path.display(), "packed weights: no cache yet");
            }
            Err(why) => {
                let file = path.display();
                tracing::warn!("{file}: the cache of packed weights is not used: {why}");
            }
        }
        Self::begin(asked, path, identity)
    }

    fn begin(asked: &PackedCache, path: PathBuf, identity: Identity) -> Self {
        let folder = match asked {
            PackedCache::Folder(folder) => std::fs::create_dir_all(folder),
            PackedCache::Beside => Ok(()),
        };
        let writer = folder
            .and_then(|()| PendingFile::create(&path))
            .and_then(|file| Writer::new(file, identity));
        match writer {
            Ok(writer) => Self::Filling { writer, path },
            Err(error) => {
                warn_unwritten(&path, &error);
                Self::Off
            }
        }
    }

    /// The matrix of these parts, if it is cached.
    pub(super) fn take(&mut self, parts: &[Part<'_>]) -> Option<B::Weight> {
        match self {
            Self::Hit(weights) => weights.remove(&recipe(parts)),
            _ => None,
        }
    }

    /// Writes a matrix that has just been packed.
    pub(super) fn keep(&mut self, device: &B, parts: &[Part<'_>], weight: &B::Weight) {
        let (Self::Filling { writer, path }, Some(form)) = (&mut *self, device.packed_form())
        else {
            return;
        };
        if let Err(error) = writer.append(recipe(parts), &form.describe(weight), form) {
            warn_unwritten(path, &error);
            *self = Self::Off;
        }
    }

    /// Puts a newly written file in its place.
    pub(super) fn finish(self) {
        let Self::Filling { writer, path } = self else { return };
        match writer.finish().and_then(PendingFile::publish) {
            Ok(()) => tracing::info!(file = %path.display(), "packed weights: cache written"),
            Err(error) => warn_unwritten(&path, &error),
        }
    }
}

fn warn_unwritten(path: &Path, error: &std::io::Error) {
    tracing::warn!("{}: packed weights are not kept: {error}", path.display());
}
