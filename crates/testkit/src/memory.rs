//! Folders in memory.

use std::path::Path;

use tempfile::TempDir;

/// A folder in memory, where the system has such folders; removed with its files when dropped.
#[derive(Debug)]
pub struct MemoryFolder(TempDir);

impl MemoryFolder {
    /// An empty folder.
    ///
    /// # Panics
    ///
    /// When the system makes none.
    pub fn new() -> Self {
        let memory = Path::new("/dev/shm");
        let root = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        Self(TempDir::with_prefix_in("pelton-", root).expect("a folder"))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Default for MemoryFolder {
    fn default() -> Self {
        Self::new()
    }
}
