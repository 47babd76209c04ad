//! The cache folder of one repository.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use pelton_base::limits;
use pelton_tensor::{PendingFile, read_limited_text};

use super::{HubError, HubId};

/// `models--org--name` inside the hub cache.
pub(crate) struct RepoCache {
    root: PathBuf,
    /// Folder of the locks of its blobs.
    locks: PathBuf,
}

/// Every repository in a hub cache, as `org/name`.
pub(crate) fn repositories(cache: &Path) -> Vec<HubId> {
    let names = entries(cache).into_iter().filter_map(|path| {
        let name = path.file_name()?.to_str()?;
        HubId::parse(&name.strip_prefix("models--")?.replacen("--", "/", 1)).ok()
    });
    let mut found: Vec<HubId> = names.collect();
    found.sort_by(|a, b| a.repo.cmp(&b.repo));
    found
}

impl RepoCache {
    pub(crate) fn new(cache: &Path, id: &HubId) -> Self {
        let name = id.folder_name();
        Self { root: cache.join(&name), locks: cache.join(".locks").join(&name) }
    }

    /// File whose lock is held while the blob is downloaded, as Python's client names it.
    pub(crate) fn lock(&self, etag: &str) -> PathBuf {
        self.locks.join(format!("{etag}.lock"))
    }

    /// Bytes of unfinished downloads.
    pub(crate) fn partial_bytes(&self) -> u64 {
        let is_partial = |path: &PathBuf| path.extension().is_some_and(|e| e == "incomplete");
        let blobs = entries(&self.root.join("blobs")).into_iter();
        blobs.filter(is_partial).filter_map(|path| Some(path.metadata().ok()?.len())).sum()
    }

    /// Bytes of a blob that are here already, whole or in part.
    pub(crate) fn arrived_bytes(&self, etag: &str) -> u64 {
        let blob = self.blob(etag);
        if blob.is_file() { size(&blob) } else { size(&partial(&blob)) }
    }

    /// Whether there is nothing of this repository.
    pub(crate) fn is_empty(&self) -> bool {
        !self.root.exists()
    }

    /// The commits in the cache, each with the branch or tag that leads to it, if one does.
    pub(crate) fn commits(&self) -> BTreeMap<String, Option<String>> {
        let names = |path: &PathBuf| Some(path.file_name()?.to_str()?.to_owned());
        let commits = entries(&self.root.join("snapshots")).into_iter();
        let commits = commits.filter_map(|path| names(&path));
        let mut commits: BTreeMap<_, _> = commits.map(|commit| (commit, None)).collect();
        let mut refs = files_below(&self.root.join("refs"));
        // The usual branch wins over further names of its commit.
        refs.sort_by_key(|name| name == "main");
        for name in refs {
            let commit = self.commit(&name);
            if let Some(found) = commit.and_then(|commit| commits.get_mut(&commit)) {
                *found = Some(name);
            }
        }
        commits
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
        let write = || {
            let mut file = PendingFile::create(&path)?;
            file.write_all(commit.as_bytes())?;
            file.publish()
        };
        write().map_err(HubError::io(&path))
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
        let up = "../".repeat(2 + file.matches('/').count());
        let target = PathBuf::from(format!("{up}blobs/{etag}"));
        // A link to a missing blob is there, though `exists` says that it is not; it is replaced.
        create_parent(&pointer)?;
        put_link(&pointer, &target, &blob).map_err(HubError::io(&pointer))?;
        Ok(pointer)
    }

    /// Every file below a snapshot, as paths relative to it.
    pub(crate) fn files(&self, commit: &str) -> Vec<String> {
        files_below(&self.snapshot(commit))
    }

    /// Removes everything of this repository; returns the bytes that were freed.
    pub(crate) fn remove(&self, id: &HubId) -> Result<u64, HubError> {
        self.check_idle(id)?;
        let n_bytes = entries(&self.root.join("blobs")).iter().map(|path| size(path)).sum();
        std::fs::remove_dir_all(&self.root).map_err(HubError::io(&self.root))?;
        // Other programs make it anew.
        let _ = std::fs::remove_dir_all(&self.locks);
        Ok(n_bytes)
    }

    /// Removes these files from every snapshot, and the blobs that only they used; returns the
    /// bytes that were freed.
    pub(crate) fn remove_files(&self, id: &HubId, files: &[String]) -> Result<u64, HubError> {
        self.check_idle(id)?;
        let mut n_bytes = 0;
        for (commit, file) in self.commits().keys().flat_map(|c| files.iter().map(move |f| (c, f)))
        {
            let pointer = self.snapshot(commit).join(file);
            let blob = pointer.canonicalize().ok();
            if blob.is_none() || std::fs::remove_file(&pointer).is_err() {
                continue;
            }
            if let Some(blob) = blob.filter(|blob| !self.is_used(blob)) {
                n_bytes += size(&blob);
                std::fs::remove_file(&blob).map_err(HubError::io(&blob))?;
            }
        }
        let is_bare = self.commits().keys().all(|commit| self.files(commit).is_empty());
        if is_bare && self.partial_bytes() == 0 {
            Ok(n_bytes + self.remove(id)?)
        } else {
            Ok(n_bytes)
        }
    }

    /// Whether a snapshot has a link to this blob.
    fn is_used(&self, blob: &Path) -> bool {
        self.commits().keys().any(|commit| {
            let folder = self.snapshot(commit);
            let files = self.files(commit);
            files.iter().any(|file| folder.join(file).canonicalize().is_ok_and(|to| to == *blob))
        })
    }

    /// Refuses where another process downloads a blob of this repository.
    fn check_idle(&self, id: &HubId) -> Result<(), HubError> {
        let is_held = |path: &PathBuf| {
            let locked = File::open(path).map(|file| file.try_lock());
            matches!(locked, Ok(Err(std::fs::TryLockError::WouldBlock)))
        };
        if entries(&self.locks).iter().any(is_held) {
            return Err(HubError::Busy { id: id.to_string() });
        }
        Ok(())
    }
}

/// The paths in a folder, sorted; none where there is no such folder.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut names: Vec<OsString> =
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.file_name()).collect();
    names.sort();
    names.into_iter().map(|name| folder.join(name)).collect()
}

/// The files below a folder, as sorted paths relative to it.
fn files_below(root: &Path) -> Vec<String> {
    let mut folders = vec![root.to_owned()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for path in entries(&folder) {
            if path.is_dir() && !path.is_symlink() {
                folders.push(path);
            } else if path.is_file()
                && let Some(name) = path.strip_prefix(root).ok().and_then(Path::to_str)
            {
                files.push(name.to_owned());
            }
        }
    }
    files.sort();
    files
}

/// Bytes of a file; none where it cannot be looked at.
fn size(path: &Path) -> u64 {
    path.metadata().map_or(0, |metadata| metadata.len())
}

/// The file in which a blob grows while it is fetched.
pub(crate) fn partial(blob: &Path) -> PathBuf {
    blob.with_added_extension("incomplete")
}

/// Whether a text is a full commit id.
pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

pub(crate) fn create_parent(path: &Path) -> Result<(), HubError> {
    let parent = path.parent().expect("invariant: paths in the cache have a parent");
    std::fs::create_dir_all(parent).map_err(HubError::io(parent))
}

/// Makes a link, or a copy of the blob, under a name of its own, and then gives it its place: another
/// process, which may make the same at the same time, never finds it missing once it was there.
fn put_link(link: &Path, target: &Path, blob: &Path) -> std::io::Result<()> {
    static N_MADE: AtomicU64 = AtomicU64::new(0);
    let number = N_MADE.fetch_add(1, Ordering::Relaxed);
    let pending = link.with_added_extension(format!("{}-{number}.pending", std::process::id()));
    // That of an earlier process with this id, which was killed here.
    let _ = std::fs::remove_file(&pending);
    let made = symlink(target, &pending)
        .or_else(|_| std::fs::copy(blob, &pending).map(drop))
        .and_then(|()| std::fs::rename(&pending, link));
    if made.is_err() {
        let _ = std::fs::remove_file(&pending);
    }
    made
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(not(unix))]
fn symlink(_target: &Path, _link: &Path) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn a_link_that_several_make_at_once_is_never_missing_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = RepoCache::new(folder.path(), &HubId::parse("org/name").expect("an id"));
        let blob = cache.blob("etag");
        create_parent(&blob).expect("a folder");
        std::fs::write(&blob, "text").expect("written");
        let (barrier, n_missing) = (Barrier::new(3), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for i in 0..1000 {
                        barrier.wait();
                        let link = cache.link("commit", &format!("f{i}"), "etag");
                        let text = link.map(std::fs::read_to_string);
                        if !matches!(text, Ok(Ok(text)) if text == "text") {
                            n_missing.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!(n_missing.into_inner(), 0);
        assert_eq!(cache.files("commit").len(), 1000, "nothing else is left");
    }

    #[test]
    fn a_link_to_a_blob_that_is_gone_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = RepoCache::new(folder.path(), &HubId::parse("org/name").expect("an id"));
        let link = cache.link("commit", "dir/file", "gone").expect("linked");
        assert!(link.is_symlink() && !link.exists());
        create_parent(&cache.blob("new")).expect("a folder");
        std::fs::write(cache.blob("new"), "text").expect("written");
        let link = cache.link("commit", "dir/file", "new").expect("linked");
        assert_eq!(std::fs::read_to_string(link).expect("it is there"), "text");
    }
}
