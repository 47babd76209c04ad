//! A file that is being written.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::Arc;

use super::{Content, FileRecord, Purpose, Store, StoreError};

/// A file that is being written. Dropped before its end, it leaves nothing behind, unless it is to
/// be continued by a later process.
#[derive(Debug)]
pub(crate) struct Upload {
    store: Arc<Store>,
    id: String,
    target: Target,
    n_bytes: u64,
    /// Most bytes of the file.
    most: u64,
    /// Whether what is written stays when this is dropped.
    is_kept: bool,
}

#[derive(Debug)]
enum Target {
    Memory(Vec<u8>),
    Disk(File, PathBuf),
}

impl Upload {
    /// Begins a file of at most so many bytes.
    pub(crate) fn new(store: &Arc<Store>, most: u64) -> Result<Self, StoreError> {
        let id = crate::wire::fresh_id("file-");
        let target = match store.path(&id, "data") {
            None => Target::Memory(Vec::new()),
            Some(path) => {
                let file = OpenOptions::new().write(true).create_new(true).open(&path);
                Target::Disk(file.map_err(StoreError::Io)?, path)
            }
        };
        Ok(Self { store: Arc::clone(store), id, target, n_bytes: 0, most, is_kept: false })
    }

    /// Goes on with a file that an earlier process began, after its first `n_bytes`.
    pub(crate) fn again(store: &Arc<Store>, id: &str, n_bytes: u64) -> Result<Self, StoreError> {
        let path = store.path(id, "data").ok_or(StoreError::Io(io::ErrorKind::NotFound.into()))?;
        let open = || -> io::Result<File> {
            let mut file = OpenOptions::new().write(true).open(&path)?;
            file.set_len(n_bytes)?;
            file.seek(SeekFrom::Start(n_bytes))?;
            Ok(file)
        };
        let target = Target::Disk(open().map_err(StoreError::Io)?, path.clone());
        store.reserve(n_bytes)?;
        let (store, id, most) = (Arc::clone(store), id.to_owned(), u64::MAX);
        Ok(Self { store, id, target, n_bytes, most, is_kept: true })
    }

    /// Leaves what is written for a later process, whatever becomes of this one.
    pub(crate) fn keep(&mut self) {
        self.is_kept = matches!(self.target, Target::Disk(..));
    }

    /// Removes what is written.
    pub(crate) fn discard(mut self) {
        self.is_kept = false;
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    /// Appends bytes.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let n = bytes.len() as u64;
        if n > self.most - self.n_bytes {
            return Err(StoreError::TooLarge(self.most));
        }
        self.store.reserve(n)?;
        let written = match &mut self.target {
            Target::Memory(all) => {
                all.extend_from_slice(bytes);
                Ok(())
            }
            Target::Disk(file, _) => file.write_all(bytes),
        };
        if let Err(error) = written {
            self.store.release(n);
            if let Target::Disk(file, _) = &mut self.target {
                // A full disk may have taken a part of it.
                let _ = file.set_len(self.n_bytes);
                let _ = file.seek(SeekFrom::Start(self.n_bytes));
            }
            return Err(StoreError::Io(error));
        }
        self.n_bytes += n;
        Ok(())
    }

    /// Makes it a file that clients can read.
    pub(crate) fn finish(
        mut self,
        filename: String,
        purpose: Purpose,
        tenant: String,
    ) -> Result<FileRecord, StoreError> {
        let content = match &mut self.target {
            Target::Memory(bytes) => {
                let mut bytes = std::mem::take(bytes);
                // A vector that grew has up to twice the room.
                bytes.shrink_to_fit();
                Content::Memory(Arc::new(bytes))
            }
            Target::Disk(file, path) => {
                file.sync_all().map_err(StoreError::Io)?;
                Content::Disk(path.clone())
            }
        };
        let record = FileRecord {
            id: self.id.clone(),
            bytes: self.n_bytes,
            created_at: crate::wire::unix_seconds(),
            filename,
            purpose,
            tenant,
        };
        self.store.add(record.clone(), content)?;
        // The bytes belong to the store now.
        (self.n_bytes, self.is_kept) = (0, true);
        Ok(record)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.store.release(self.n_bytes);
        if let (Target::Disk(_, path), false) = (&self.target, self.is_kept) {
            // Nothing can be done about a file that cannot be removed.
            let _ = std::fs::remove_file(path);
        }
    }
}
