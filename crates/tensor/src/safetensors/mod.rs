//! Safetensors files, alone or sharded over several files by an index.
//!
//! ```text
//! header_len:u64  header:JSON  data
//! ```
//! The header maps each tensor's name to its type, row-major shape and range in the data. A sharded
//! checkpoint is a folder with an index, whose `weight_map` names the file that holds each tensor.

mod header;
mod writer;

use std::collections::BTreeMap;
use std::collections::btree_map;
use std::io;
use std::path::{Component, Path, PathBuf};

use pelton_base::limits;
use serde::Deserialize;

use crate::error::shown;
use crate::json::UniqueMap;
use crate::source::Catalog;
use crate::{MappedFile, Result, TensorError, TensorSource, TensorView};

pub use writer::write_safetensors;

/// The only file of a checkpoint that is not sharded.
const SINGLE_FILE: &str = "model.safetensors";
/// The index of a sharded checkpoint.
const INDEX_FILE: &str = "model.safetensors.index.json";

/// One safetensors checkpoint: a file, or a folder of shards, mapped.
#[derive(Debug)]
pub struct Safetensors {
    origin: PathBuf,
    metadata: BTreeMap<String, String>,
    catalog: Catalog,
}

#[derive(Deserialize)]
struct Index {
    weight_map: UniqueMap<String>,
}

impl Safetensors {
    /// Maps and checks one file.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, or when its header contradicts itself or the file's size; the
    /// error names the tensor.
    pub fn open_file(path: &Path) -> Result<Self> {
        Self::from_mapped(MappedFile::open(path)?)
    }

    /// Checks a file that is already mapped, embedded or in memory.
    ///
    /// # Errors
    ///
    /// As for [`Safetensors::open_file`].
    pub fn from_mapped(mapped: MappedFile) -> Result<Self> {
        let mut all = Self {
            origin: mapped.path().to_owned(),
            metadata: BTreeMap::new(),
            catalog: Catalog::default(),
        };
        all.add(mapped)?;
        Ok(all)
    }

    /// Opens a model folder: `model.safetensors`, or the shards that
    /// `model.safetensors.index.json` names, or without either the only `.safetensors` file, which
    /// early quantized checkpoints call after their method.
    ///
    /// # Errors
    ///
    /// When the folder holds neither, when a shard is missing, when the index names a file outside
    /// the folder or a tensor that its shard lacks, and as for [`Safetensors::open_file`].
    pub fn open_folder(folder: &Path) -> Result<Self> {
        let single = folder.join(SINGLE_FILE);
        if exists(&single)? {
            return Self::open_file(&single);
        }
        let index_path = folder.join(INDEX_FILE);
        if !exists(&index_path)? {
            if let Some(file) = only_file(folder)? {
                return Self::open_file(&file);
            }
            let expected = format!("`{SINGLE_FILE}` or `{INDEX_FILE}`");
            return Err(TensorError::malformed(folder, "weights", expected, "neither"));
        }
        Self::open_shards(folder, &index_path)
    }

    /// `__metadata__` of the header; of all shards together when there are several.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    fn open_shards(folder: &Path, index_path: &Path) -> Result<Self> {
        let index = MappedFile::open(index_path)?;
        if index.bytes().len() as u64 > limits::SAFETENSORS_INDEX_BYTES {
            let expected = format!("at most {} bytes", limits::SAFETENSORS_INDEX_BYTES);
            let got = index.bytes().len().to_string();
            return Err(TensorError::malformed(index_path, "size", expected, got));
        }
        let index: Index = serde_json::from_slice(index.bytes()).map_err(|err| {
            let expected = "a JSON object whose `weight_map` maps tensors to files";
            TensorError::malformed(index_path, "index", expected, shown(&err.to_string()))
        })?;
        let weight_map = index.weight_map.0;
        let mut all = Self {
            origin: folder.to_owned(),
            metadata: BTreeMap::new(),
            catalog: Catalog::default(),
        };
        let mut file_idx_of: BTreeMap<&str, usize> = BTreeMap::new();
        for (tensor, shard) in &weight_map {
            let field = || format!("weight_map, tensor `{}`", shown(tensor));
            let file_idx = match file_idx_of.get(shard.as_str()) {
                Some(&file_idx) => file_idx,
                None => {
                    check_shard_name(index_path, &field(), shard)?;
                    let path = folder.join(shard);
                    if !exists(&path)? {
                        let (folder, shard) = (folder.to_owned(), shown(shard));
                        return Err(TensorError::MissingShard { folder, shard });
                    }
                    let file_idx = all.add(MappedFile::open(&path)?)?;
                    file_idx_of.insert(shard, file_idx);
                    file_idx
                }
            };
            if all.catalog.entries.get(tensor).is_none_or(|entry| entry.file_idx != file_idx) {
                let expected = format!("a tensor that `{}` holds", shown(shard));
                return Err(TensorError::malformed(index_path, field(), expected, "one it lacks"));
            }
        }
        Ok(all)
    }

    /// Adds the tensors of one file and returns the file's index.
    fn add(&mut self, mapped: MappedFile) -> Result<usize> {
        let file_idx = self.catalog.files.len();
        let header = header::read(mapped.path(), mapped.bytes(), file_idx)?;
        for (name, entry) in header.entries {
            match self.catalog.entries.entry(name) {
                btree_map::Entry::Vacant(slot) => {
                    slot.insert(entry);
                }
                btree_map::Entry::Occupied(slot) => {
                    let field = format!("tensor `{}`", shown(slot.key()));
                    let expected = "one tensor of this name in all shards";
                    return Err(TensorError::malformed(mapped.path(), field, expected, "two"));
                }
            }
        }
        self.metadata.extend(header.metadata);
        self.catalog.files.push(mapped);
        Ok(file_idx)
    }
}

impl TensorSource for Safetensors {
    fn names(&self) -> Vec<&str> {
        self.catalog.names()
    }

    fn get(&self, name: &str) -> Option<TensorView<'_>> {
        self.catalog.get(name)
    }

    fn origin(&self) -> &Path {
        &self.origin
    }

    fn files(&self) -> &[MappedFile] {
        &self.catalog.files
    }
}

/// The one `.safetensors` file of a folder, or `None` where there are several or none.
fn only_file(folder: &Path) -> Result<Option<PathBuf>> {
    let io = |source| TensorError::io(folder, source);
    let mut found = None;
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        let is_weights = path.extension().is_some_and(|extension| extension == "safetensors");
        if is_weights && found.replace(path).is_some() {
            return Ok(None);
        }
    }
    Ok(found)
}

/// Refuses everything but the plain name of a safetensors file beside the index.
fn check_shard_name(index_path: &Path, field: &str, shard: &str) -> Result<()> {
    let mut components = Path::new(shard).components();
    let is_plain = matches!(components.next(), Some(Component::Normal(name)) if name == shard)
        && components.next().is_none();
    // A backslash or a colon leads out of the folder on other systems.
    if is_plain && shard.ends_with(".safetensors") && !shard.contains(['\\', ':', '\0']) {
        return Ok(());
    }
    let expected = "the name of a `.safetensors` file in the same folder";
    Err(TensorError::malformed(index_path, field, expected, format!("`{}`", shown(shard))))
}

/// Whether there is something at `path`; a broken link counts as nothing.
fn exists(path: &Path) -> Result<bool> {
    match path.try_exists() {
        Err(err) if err.kind() == io::ErrorKind::NotADirectory => Ok(false),
        answer => answer.map_err(|source| TensorError::io(path, source)),
    }
}
