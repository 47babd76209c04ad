//! Files mapped into memory, read as plain bytes.

mod lost;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use memmap2::Mmap;

use crate::{MemoryRefused, Result, TensorError, open_regular};
pub use lost::{LOST_FILE_EXIT_CODE, handle_file_signals};

/// The bytes of a file that stays where it is: mapped, embedded in the binary, or held in memory.
pub struct MappedFile {
    path: PathBuf,
    bytes: Bytes,
    /// Time of the mapped file, even if another file is at the path by now.
    modified: Option<SystemTime>,
}

enum Bytes {
    Mapped {
        /// Dropped before the map, so that no other map can have its addresses by then.
        _known: lost::Known,
        map: Mmap,
    },
    Static(&'static [u8]),
    Owned(Vec<u8>),
}

impl MappedFile {
    /// Maps the file at `path` for reading.
    ///
    /// The file must not be shortened while it is mapped: the system answers reads past the new end
    /// with a signal that ends the process, and [`handle_file_signals`] makes it say why. Replacing
    /// it by a rename is harmless.
    ///
    /// # Errors
    ///
    /// When the file cannot be opened, is not a regular file, or cannot be mapped.
    pub fn open(path: &Path) -> Result<Self> {
        let fail = |source| TensorError::io(path, source);
        let (file, metadata) = open_regular(path).map_err(fail)?;
        let (path, modified) = (path.to_owned(), metadata.modified().ok());
        if metadata.len() == 0 {
            return Ok(Self { path, bytes: Bytes::Static(&[]), modified });
        }
        // SAFETY: the map is private to this value, read-only, and only ever seen as `&[u8]` that
        // cannot outlive it; the documented condition is that the file is not changed meanwhile.
        let map = unsafe { Mmap::map(&file) };
        let map = map.map_err(|source| match source.kind() {
            io::ErrorKind::OutOfMemory => {
                TensorError::io(&path, MemoryRefused::new(metadata.len() as usize, &source).into())
            }
            _ => TensorError::io(&path, source),
        })?;
        let known = lost::Known::new(map.as_ptr_range(), &path);
        Ok(Self { path, bytes: Bytes::Mapped { _known: known, map }, modified })
    }

    /// Bytes that are part of the program; `name` stands for the file in messages.
    pub fn from_static(name: impl Into<PathBuf>, bytes: &'static [u8]) -> Self {
        Self { path: name.into(), bytes: Bytes::Static(bytes), modified: None }
    }

    /// Bytes already in memory; `name` stands for the file in messages.
    pub fn from_vec(name: impl Into<PathBuf>, bytes: Vec<u8>) -> Self {
        Self { path: name.into(), bytes: Bytes::Owned(bytes), modified: None }
    }

    /// Where the bytes come from, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// When the file was last written, as it was opened; `None` for bytes that are no file.
    pub fn modified(&self) -> Option<SystemTime> {
        self.modified
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped { map, .. } => map,
            Bytes::Static(bytes) => bytes,
            Bytes::Owned(bytes) => bytes,
        }
    }

    /// Gives the memory behind `part` back to the system, if `part` lies in this file and the file
    /// is mapped; the next read brings the bytes back, from the system's cache or from the disk.
    ///
    /// Until then, the bytes that were read count as memory of this process. Whole pages are given
    /// back, so bytes next to `part` may be given back too.
    pub fn give_back(&self, part: &[u8]) {
        let Bytes::Mapped { map, .. } = &self.bytes else { return };
        let (whole, part) = (map.as_ptr_range(), part.as_ptr_range());
        if part.is_empty() || part.start < whole.start || part.end > whole.end {
            return;
        }
        #[cfg(target_os = "linux")]
        {
            let offset = part.start as usize - whole.start as usize;
            let n_bytes = part.end as usize - part.start as usize;
            // SAFETY: the range lies in the map, which is shared and read-only: there are no
            // private changes to lose, and a page that is read again holds the same bytes of the
            // file.
            let advised = unsafe {
                map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, offset, n_bytes)
            };
            // The call is advice: if it is refused, the pages stay until the map is dropped.
            let _ = advised;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of `n_bytes` bytes that differ from page to page, and what it holds.
    fn patterned(folder: &Path, n_bytes: usize) -> (PathBuf, Vec<u8>) {
        let bytes: Vec<u8> = (0..n_bytes).map(|i| (i / 4096 + i) as u8).collect();
        let path = folder.join("patterned");
        std::fs::write(&path, &bytes).expect("written");
        (path, bytes)
    }

    /// KiB of the file at `path` that are in this process's memory.
    #[cfg(target_os = "linux")]
    fn resident_kib(path: &Path) -> u64 {
        let smaps = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
        let at = smaps.find(&format!("{}\n", path.display())).expect("the file is mapped");
        let rss = smaps[at..].lines().find_map(|line| line.strip_prefix("Rss:")).expect("Rss");
        rss.trim().trim_end_matches(" kB").parse().expect("a number")
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_is_given_back_leaves_memory_and_reads_the_same_again() {
        let folder = tempfile::tempdir().expect("temp");
        let (path, bytes) = patterned(folder.path(), 4 << 20);
        let file = MappedFile::open(&path).expect("opens");
        assert_eq!(file.bytes(), bytes);
        let whole_kib = resident_kib(&path);
        assert!(whole_kib >= 4 << 10, "{whole_kib} KiB after reading all of it");
        file.give_back(&file.bytes()[1 << 20..3 << 20]);
        let rest_kib = resident_kib(&path);
        assert!(rest_kib <= whole_kib - (2 << 10), "{rest_kib} of {whole_kib} KiB");
        file.give_back(file.bytes());
        assert_eq!(resident_kib(&path), 0);
        assert_eq!(file.bytes(), bytes);
    }

    #[test]
    fn giving_back_what_is_not_of_the_file_does_nothing() {
        let folder = tempfile::tempdir().expect("temp");
        let (path, bytes) = patterned(folder.path(), 10_000);
        let file = MappedFile::open(&path).expect("opens");
        file.give_back(&bytes);
        file.give_back(&[]);
        file.give_back(&file.bytes()[4095..4097]);
        assert_eq!(file.bytes(), bytes);
        let owned = MappedFile::from_vec("owned", bytes.clone());
        owned.give_back(owned.bytes());
        assert_eq!(owned.bytes(), bytes);
    }
}
