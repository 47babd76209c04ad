//! All files and batches of a server.

use std::collections::{BTreeMap, HashSet};
use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use super::{
    BatchRecord, Content, FILE_BYTES, FOLDER_BYTES, FileRecord, MEMORY_BYTES, MOST_ENTRIES,
};
use crate::error::ApiError;

/// Largest file about a file or batch, in bytes.
const RECORD_BYTES: u64 = 1 << 20;

/// Name of the file whose lock says that a process uses the folder.
const LOCK: &str = "lock";

/// All files and batches of a server.
#[derive(Debug)]
pub(crate) struct Store {
    folder: Option<Folder>,
    /// Largest file that a client may upload, in bytes.
    most_file_bytes: u64,
    inner: Mutex<Inner>,
    /// Held while the state of a batch is changed and written, so that the last change is written
    /// last. It is taken before `inner`.
    writing: Mutex<()>,
}

/// A folder that no other process uses.
#[derive(Debug)]
struct Folder {
    path: PathBuf,
    /// Locked until it is dropped.
    _lock: File,
}

#[derive(Debug, Default)]
struct Inner {
    /// By id; ids that were given later sort later within one second only, so lists sort by time.
    files: BTreeMap<String, (FileRecord, Content)>,
    batches: BTreeMap<String, BatchRecord>,
    n_bytes: u64,
}

/// A file that cannot be kept.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("a file has at most {0} bytes")]
    TooLarge(u64),
    #[error("{0}")]
    Full(String),
    #[error("the file cannot be kept: {0}")]
    Io(io::Error),
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        match &error {
            StoreError::TooLarge(most) => Self::too_large(*most as usize),
            StoreError::Full(_) => Self::no_room(error.to_string()),
            StoreError::Io(io)
                if matches!(io.kind(), StorageFull | QuotaExceeded | FileTooLarge) =>
            {
                Self::no_room(format!("there is no room under `--files` ({io}); delete files"))
            }
            StoreError::Io(_) => Self::internal(error.to_string()),
        }
    }
}

impl Store {
    /// The files in a folder, or none in memory; clients may upload files of so many bytes.
    ///
    /// # Errors
    ///
    /// When the folder cannot be made or read, or when another process uses it.
    pub(crate) fn open(folder: Option<&Path>, most_file_bytes: u64) -> io::Result<Self> {
        let mut inner = Inner::default();
        let folder = match folder {
            None => None,
            Some(path) => {
                std::fs::create_dir_all(path)?;
                let folder = Folder::lock(path)?;
                inner.read_all(path)?;
                Some(folder)
            }
        };
        Ok(Self { folder, most_file_bytes, inner: Mutex::new(inner), writing: Mutex::default() })
    }

    /// Largest file that a client may upload, in bytes.
    pub(crate) fn most_file_bytes(&self) -> u64 {
        self.most_file_bytes
    }

    /// Whether files outlive the process.
    pub(crate) fn is_on_disk(&self) -> bool {
        self.folder.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The path of a part of a file or batch, where there is a folder.
    pub(super) fn path(&self, id: &str, ending: &str) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.path.join(format!("{id}.{ending}")))
    }

    /// Takes room for bytes.
    pub(super) fn reserve(&self, n_bytes: u64) -> Result<(), StoreError> {
        let most = if self.is_on_disk() { FOLDER_BYTES } else { MEMORY_BYTES };
        let mut inner = self.lock();
        if inner.n_bytes + n_bytes > most {
            let hint =
                if self.is_on_disk() { "" } else { ", or start the server with `--files DIR`" };
            let why = format!("files take at most {most} bytes together; delete some{hint}");
            return Err(StoreError::Full(why));
        }
        inner.n_bytes += n_bytes;
        Ok(())
    }

    /// Gives room back.
    pub(super) fn release(&self, n_bytes: u64) {
        let mut inner = self.lock();
        inner.n_bytes = inner.n_bytes.saturating_sub(n_bytes);
    }

    pub(super) fn add(&self, record: FileRecord, content: Content) -> Result<(), StoreError> {
        let n_files = {
            let inner = self.lock();
            inner.files.values().filter(|(file, _)| file.tenant == record.tenant).count()
        };
        if n_files >= MOST_ENTRIES {
            let why = format!("a tenant has at most {MOST_ENTRIES} files; delete some");
            return Err(StoreError::Full(why));
        }
        self.write(&record.id, &record)?;
        self.lock().files.insert(record.id.clone(), (record, content));
        Ok(())
    }

    /// A file of a tenant.
    pub(crate) fn file(&self, tenant: &str, id: &str) -> Option<(FileRecord, Content)> {
        let inner = self.lock();
        inner.files.get(id).filter(|(file, _)| file.tenant == tenant).cloned()
    }

    /// The files of a tenant, newest first.
    pub(crate) fn files(&self, tenant: &str) -> Vec<FileRecord> {
        let inner = self.lock();
        let own = inner.files.values().filter(|(file, _)| file.tenant == tenant);
        let mut files: Vec<FileRecord> = own.map(|(file, _)| file.clone()).collect();
        files.sort_by(|a, b| b.created_at.cmp(&a.created_at).then_with(|| b.id.cmp(&a.id)));
        files
    }

    /// Removes a file of a tenant; whether there was one.
    pub(crate) fn delete(&self, tenant: &str, id: &str) -> Result<bool, StoreError> {
        let Some((record, content)) = self.file(tenant, id) else { return Ok(false) };
        // The record goes first: without it the bytes are nobody's.
        if let Some(path) = self.path(id, "json") {
            std::fs::remove_file(path).map_err(StoreError::Io)?;
        }
        let is_gone = self.lock().files.remove(id).is_some();
        if is_gone {
            self.release(record.bytes);
            if let Content::Disk(path) = content {
                std::fs::remove_file(path).map_err(StoreError::Io)?;
            }
        }
        Ok(is_gone)
    }

    /// Adds a batch.
    pub(crate) fn add_batch(&self, record: BatchRecord) -> Result<(), StoreError> {
        let own = self.batches(Some(&record.tenant));
        if own.len() >= MOST_ENTRIES {
            let oldest = own.iter().rfind(|batch| batch.status.is_final() && batch.work.is_none());
            let why = || format!("a tenant has at most {MOST_ENTRIES} batches that have not ended");
            self.forget_batch(&oldest.ok_or_else(|| StoreError::Full(why()))?.id)?;
        }
        self.write(&record.id, &record)?;
        self.lock().batches.insert(record.id.clone(), record);
        Ok(())
    }

    /// Removes what is known of a batch; its files stay.
    fn forget_batch(&self, id: &str) -> Result<(), StoreError> {
        if let Some(path) = self.path(id, "json") {
            std::fs::remove_file(path).map_err(StoreError::Io)?;
        }
        self.lock().batches.remove(id);
        Ok(())
    }

    /// A batch of a tenant.
    pub(crate) fn batch(&self, tenant: &str, id: &str) -> Option<BatchRecord> {
        let inner = self.lock();
        inner.batches.get(id).filter(|batch| batch.tenant == tenant).cloned()
    }

    /// The batches of a tenant, newest first; those of all without one.
    pub(crate) fn batches(&self, tenant: Option<&str>) -> Vec<BatchRecord> {
        let inner = self.lock();
        let own = inner.batches.values();
        let own = own.filter(|batch| tenant.is_none_or(|tenant| batch.tenant == tenant));
        let mut batches: Vec<BatchRecord> = own.cloned().collect();
        batches.sort_by(|a, b| b.created_at.cmp(&a.created_at).then_with(|| b.id.cmp(&a.id)));
        batches
    }

    /// Changes a batch; `is_lasting` writes it to the folder, too.
    pub(crate) fn change<T>(
        &self,
        id: &str,
        is_lasting: bool,
        change: impl FnOnce(&mut BatchRecord) -> T,
    ) -> Option<T> {
        let _writing =
            is_lasting.then(|| self.writing.lock().unwrap_or_else(PoisonError::into_inner));
        let (outcome, record) = {
            let mut inner = self.lock();
            let batch = inner.batches.get_mut(id)?;
            let outcome = change(batch);
            (outcome, is_lasting.then(|| batch.clone()))
        };
        if let Some(record) = record
            && let Err(error) = self.write(id, &record)
        {
            tracing::error!(%error, batch = id, "the state of a batch cannot be written");
        }
        Some(outcome)
    }

    /// Writes what is known of a file or batch, as a whole.
    fn write(&self, id: &str, record: &impl Serialize) -> Result<(), StoreError> {
        let (Some(path), Some(new)) = (self.path(id, "json"), self.path(id, "new")) else {
            return Ok(());
        };
        let text = serde_json::to_vec(record).expect("invariant: plain data");
        let write = || -> io::Result<()> {
            let mut file = std::fs::File::create(&new)?;
            file.write_all(&text)?;
            file.sync_all()?;
            std::fs::rename(&new, &path)
        };
        write().map_err(|error| {
            // Nothing can be done about a file that cannot be removed.
            let _ = std::fs::remove_file(&new);
            StoreError::Io(error)
        })
    }
}

/// A store in memory.
impl Default for Store {
    fn default() -> Self {
        let (inner, writing) = (Mutex::default(), Mutex::default());
        Self { folder: None, most_file_bytes: FILE_BYTES, inner, writing }
    }
}

impl Folder {
    /// Locks a folder. Two servers on one folder would answer the same batches twice.
    fn lock(path: &Path) -> io::Result<Self> {
        let lock = File::options().create(true).append(true).open(path.join(LOCK))?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => {
                let why = "another process uses this folder; give each server a folder of its own";
                io::Error::new(io::ErrorKind::ResourceBusy, why)
            }
            TryLockError::Error(error) => error,
        })?;
        Ok(Self { path: path.to_owned(), _lock: lock })
    }
}

impl Inner {
    /// Takes all records of a folder, and removes what a process that was killed left half done.
    fn read_all(&mut self, folder: &Path) -> io::Result<()> {
        let entries = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path()));
        let paths = entries.collect::<io::Result<Vec<_>>>()?;
        paths.iter().for_each(|path| self.read(path));
        let at_work = self.batches.values().flat_map(|batch| batch.work.iter().flatten());
        let at_work: HashSet<&str> = at_work.map(String::as_str).collect();
        for path in &paths {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let is_own = |id: &str| id.starts_with("file-") || id.starts_with("batch_");
            let is_left = match name.rsplit_once('.') {
                // A file without a record is nobody's, unless a batch writes to it.
                Some((id, "data")) => {
                    is_own(id) && !path.with_extension("json").exists() && !at_work.contains(id)
                }
                Some((id, "new")) => is_own(id),
                _ => false,
            };
            if is_left && std::fs::remove_file(path).is_ok() {
                tracing::info!(file = name, "a file that was never complete is removed");
            }
        }
        Ok(())
    }

    /// Takes a record of a folder; what is none is left alone, and said.
    fn read(&mut self, path: &Path) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(id) = name.strip_suffix(".json") else { return };
        let read = || -> Result<Vec<u8>, String> {
            let n_bytes = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
            match n_bytes <= RECORD_BYTES {
                true => std::fs::read(path).map_err(|error| error.to_string()),
                false => Err(format!("expected at most {RECORD_BYTES} bytes, got {n_bytes}")),
            }
        };
        let outcome = read().and_then(|bytes| self.add(id, path, &bytes));
        if let Err(why) = outcome {
            tracing::warn!(file = %path.display(), why, "a file under `--files` is left alone");
        }
    }

    fn add(&mut self, id: &str, path: &Path, bytes: &[u8]) -> Result<(), String> {
        if id.starts_with("batch_") {
            let record: BatchRecord =
                serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
            if record.id != id {
                return Err(format!("it says that it is `{}`", record.id));
            }
            self.batches.insert(id.to_owned(), record);
            return Ok(());
        }
        let record: FileRecord =
            serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let data = path.with_extension("data");
        let n_bytes = std::fs::metadata(&data).map_err(|error| error.to_string())?.len();
        if record.id != id || record.bytes != n_bytes {
            return Err(format!("it says `{}` with {} bytes", record.id, record.bytes));
        }
        self.n_bytes += n_bytes;
        self.files.insert(id.to_owned(), (record, Content::Disk(data)));
        Ok(())
    }
}
