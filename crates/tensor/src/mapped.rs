//! Files mapped into memory, read as plain bytes.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::{Result, TensorError};

/// The bytes of a file that stays where it is: mapped, embedded in the binary, or held in memory.
pub struct MappedFile {
    path: PathBuf,
    bytes: Bytes,
}

enum Bytes {
    Mapped(Mmap),
    Static(&'static [u8]),
    Owned(Vec<u8>),
}

impl MappedFile {
    /// Maps the file at `path` for reading.
    ///
    /// The file must not be shortened while it is mapped: the system answers reads past the new end
    /// with a signal that ends the process. Replacing it by a rename is harmless.
    ///
    /// # Errors
    ///
    /// When the file cannot be opened, is not a regular file, or cannot be mapped.
    pub fn open(path: &Path) -> Result<Self> {
        let fail = |source| TensorError::io(path, source);
        // Asked before opening: opening a named pipe would wait for a writer.
        let kind = std::fs::metadata(path).map_err(fail)?;
        if !kind.is_file() {
            let what = if kind.is_dir() { "is a folder, not a file" } else { "is not a file" };
            return Err(fail(io::Error::new(io::ErrorKind::InvalidInput, what)));
        }
        let file = File::open(path).map_err(fail)?;
        if file.metadata().map_err(fail)?.len() == 0 {
            return Ok(Self { path: path.to_owned(), bytes: Bytes::Static(&[]) });
        }
        // SAFETY: the map is private to this value, read-only, and only ever seen as `&[u8]` that
        // cannot outlive it; that nobody writes to the file meanwhile is the documented condition.
        let map = unsafe { Mmap::map(&file) }.map_err(fail)?;
        Ok(Self { path: path.to_owned(), bytes: Bytes::Mapped(map) })
    }

    /// Bytes that are part of the program; `name` stands for the file in messages.
    pub fn from_static(name: impl Into<PathBuf>, bytes: &'static [u8]) -> Self {
        Self { path: name.into(), bytes: Bytes::Static(bytes) }
    }

    /// Bytes already in memory; `name` stands for the file in messages.
    pub fn from_vec(name: impl Into<PathBuf>, bytes: Vec<u8>) -> Self {
        Self { path: name.into(), bytes: Bytes::Owned(bytes) }
    }

    /// Where the bytes come from, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped(map) => map,
            Bytes::Static(bytes) => bytes,
            Bytes::Owned(bytes) => bytes,
        }
    }
}

impl fmt::Debug for MappedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MappedFile")
            .field("path", &self.path)
            .field("n_bytes", &self.bytes().len())
            .finish()
    }
}
