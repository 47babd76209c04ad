//! The cache folder of one repository.

use std::path::{Path, PathBuf};

use pelton_base::limits;
use pelton_tensor::read_limited_text;

use super::{HubError, HubId};

/// `models--org--name` inside the hub cache.
pub(crate) struct RepoCache {
    root: PathBuf,
}

impl RepoCache {
    pub(crate) fn new(cache: &Path, id: &HubId) -> Self {
        Self { root: cache.join(id.folder_name()) }
    }

    /// The commit that `revision` stood for when it was last fetched, or `revision` itself when it
    /// names a snapshot.
    pub(crate) fn commit(&self, revision: &str) -> Option<String> {
        if self.snapshot(revision).is_dir() {
            return Some(revision.to_owned());
        }
        let path = self.root.join("refs").join(revision);
        let text = read_limited_text(&path, limits::CONFIG_BYTES).ok()?;
        let commit = text.trim();
        (is_commit(commit) && self.snapshot(commit).is_dir()).then(|| commit.to_owned())
    }

    pub(crate) fn write_ref(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        if revision == commit {
            return Ok(());
        }
        let path = self.root.join("refs").join(revision);
        create_parent(&path)?;
        std::fs::write(&path, commit).map_err(HubError::io(path))
    }

    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.root.join("snapshots").join(commit)
    }

    pub(crate) fn blob(&self, etag: &str) -> PathBuf {
        self.root.join("blobs").join(etag)
    }

    /// Makes `snapshots/<commit>/<file>` point to `blobs/<etag>`.
    ///
    /// Where links cannot be made the blob is copied.
    pub(crate) fn link(&self, commit: &str, file: &str, etag: &str) -> Result<PathBuf, HubError> {
        let pointer = self.snapshot(commit).join(file);
        let blob = self.blob(etag);
        if pointer.exists() {
            return Ok(pointer);
        }
        create_parent(&pointer)?;
        // A link to a missing blob is there, though `exists` says that it is not.
        let _ = std::fs::remove_file(&pointer);
        let up = "../".repeat(2 + file.matches('/').count());
        let target = PathBuf::from(format!("{up}blobs/{etag}"));
        match symlink(&target, &pointer) {
            Ok(()) => Ok(pointer),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(pointer),
            Err(_) => {
                std::fs::copy(&blob, &pointer).map_err(HubError::io(&pointer))?;
                Ok(pointer)
            }
        }
    }

    /// Every file below a snapshot, as paths relative to it.
    pub(crate) fn files(&self, commit: &str) -> Vec<String> {
        let root = self.snapshot(commit);
        let mut folders = vec![root.clone()];
        let mut files = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
                let path = entry.path();
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    folders.push(path);
                } else if path.is_file()
                    && let Some(name) = path.strip_prefix(&root).ok().and_then(Path::to_str)
                {
                    files.push(name.to_owned());
                }
            }
        }
        files.sort();
        files
    }
}

/// Whether a text is a full commit id.
pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

pub(crate) fn create_parent(path: &Path) -> Result<(), HubError> {
    let parent = path.parent().expect("invariant: paths in the cache have a parent");
    std::fs::create_dir_all(parent).map_err(HubError::io(parent))
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(not(unix))]
fn symlink(_target: &Path, _link: &Path) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}
