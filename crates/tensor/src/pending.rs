//! A file that gets its name only when it is whole.
//!
//! ```text
//! create    a file without a name in the target's folder (Linux, most file systems)
//! write     an error, Ctrl-C or a power cut here leaves nothing behind
//! publish   fsync, then a temporary name, then a rename over the target
//! ```
//!
//! Readers of the target see the whole old file or the whole new file; a process that has the old
//! file mapped keeps it. A link stays, and the file that it leads to is replaced; the new file has
//! the permissions of the old one. Devices and pipes are refused, because a rename would put a file
//! in their place.
//!
//! On a file system without nameless files (NFS, some overlays) the file has its temporary name
//! from the start; it is removed when the value is dropped, and stays when the process is killed.
//!
//! Considered and not taken: `tempfile`, whose named files outlive a Ctrl-C and whose unnamed ones
//! cannot be given a name; a name in the system's temporary folder, which a rename cannot leave.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// A file being written that will replace the one at its target.
#[derive(Debug)]
pub struct PendingFile {
    file: File,
    target: PathBuf,
    /// In the target's folder; no other process of this machine uses it.
    temporary: PathBuf,
    is_named: bool,
}

impl PendingFile {
    /// Begins a file that will be at `target`.
    ///
    /// # Errors
    ///
    /// A target that is a folder, a device or a pipe; the system's own, when the folder is missing
    /// or may not be written to.
    pub fn create(target: &Path) -> io::Result<Self> {
        Self::create_by(target, |target| match open_unnamed(folder_of(target)) {
            Ok(file) => Ok(Self::new(file, target, temporary_name(target), false)),
            // Kernels and file systems without nameless files report different errors, so every
            // error leads to the second way; it reports a fault of the folder too.
            Err(_) => Self::open_named(target),
        })
    }

    /// Begins a file by one of the two ways.
    fn create_by(target: &Path, open: impl FnOnce(&Path) -> io::Result<Self>) -> io::Result<Self> {
        let permissions = match std::fs::metadata(target) {
            Ok(old) if old.is_file() => Some(old.permissions()),
            Ok(old) => {
                let what = if old.is_dir() { "a folder" } else { "a device or a pipe" };
                let message = format!("expected a file, got {what}");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
            }
            Err(_) => None,
        };
        let pending = open(&behind_links(target)?)?;
        if let Some(permissions) = permissions {
            pending.file.set_permissions(permissions)?;
        }
        Ok(pending)
    }

    fn open_named(target: &Path) -> io::Result<Self> {
        let temporary = temporary_name(target);
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&temporary)?;
        Ok(Self::new(file, target, temporary, true))
    }

    fn new(file: File, target: &Path, temporary: PathBuf, is_named: bool) -> Self {
        Self { file, target: target.to_owned(), temporary, is_named }
    }

    /// Waits until the disk has the bytes, then puts the file in the target's place.
    ///
    /// # Errors
    ///
    /// The system's own; the target is then unchanged, and the new file is removed.
    pub fn publish(mut self) -> io::Result<()> {
        self.file.sync_all()?;
        if !self.is_named {
            give_name(&self.file, &self.temporary)?;
            self.is_named = true;
        }
        std::fs::rename(&self.temporary, &self.target)?;
        self.is_named = false;
        Ok(())
    }
}

impl Write for PendingFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Seek for PendingFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

impl Drop for PendingFile {
    fn drop(&mut self) {
        if self.is_named {
            // A drop cannot report its error.
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

/// The path that the links at `target` lead to, whether there is a file or not.
///
/// # Errors
///
/// Links that lead to one another.
fn behind_links(target: &Path) -> io::Result<PathBuf> {
    let mut path = target.to_owned();
    // As many as Linux follows.
    for _ in 0..40 {
        match std::fs::read_link(&path) {
            Ok(next) => path = folder_of(&path).join(next),
            Err(_) => return Ok(path),
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "too many links lead to one another"))
}

fn folder_of(target: &Path) -> &Path {
    match target.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// `TARGET.PID.N.tmp`: two writers of one process differ in `N`.
fn temporary_name(target: &Path) -> PathBuf {
    use std::sync::atomic::{AtomicU64, Ordering};
    static N_NAMES: AtomicU64 = AtomicU64::new(0);
    let idx = N_NAMES.fetch_add(1, Ordering::Relaxed);
    let mut name = target.as_os_str().to_owned();
    name.push(format!(".{}.{idx}.tmp", std::process::id()));
    name.into()
}

#[cfg(target_os = "linux")]
fn open_unnamed(folder: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_TMPFILE).open(folder)
}

#[cfg(not(target_os = "linux"))]
fn open_unnamed(_folder: &Path) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Links a file without a name.
#[cfg(target_os = "linux")]
fn give_name(file: &File, name: &Path) -> io::Result<()> {
    use std::ffi::CString;
    use std::os::fd::AsRawFd;
    use std::os::unix::ffi::OsStrExt;
    let from = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    let to = CString::new(name.as_os_str().as_bytes())?;
    let (here, follow) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW);
    // SAFETY: both strings end with a zero and outlive the call, which only reads them.
    let answer = unsafe { libc::linkat(here, from.as_ptr(), here, to.as_ptr(), follow) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(not(target_os = "linux"))]
fn give_name(_file: &File, _name: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    type Create = fn(&Path) -> io::Result<PendingFile>;
    const WAYS: [Create; 2] = [PendingFile::create, create_named];

    fn create_named(target: &Path) -> io::Result<PendingFile> {
        PendingFile::create_by(target, PendingFile::open_named)
    }

    fn names(folder: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).expect("a folder");
        entries.map(|entry| entry.expect("an entry").path()).collect()
    }

    #[test]
    fn a_published_file_replaces_its_target_and_nothing_else_stays() {
        for create in WAYS {
            let folder = tempfile::tempdir().expect("temp");
            let target = folder.path().join("target");
            for text in ["first", "second"] {
                let mut pending = create(&target).expect("begins");
                pending.write_all(text.as_bytes()).expect("written");
                pending.publish().expect("published");
                assert_eq!(std::fs::read_to_string(&target).expect("there"), text);
                assert_eq!(names(folder.path()), std::slice::from_ref(&target));
            }
        }
    }

    #[test]
    fn a_dropped_file_leaves_the_target_and_no_trace() {
        for create in WAYS {
            let folder = tempfile::tempdir().expect("temp");
            let target = folder.path().join("target");
            std::fs::write(&target, "old").expect("written");
            let mut pending = create(&target).expect("begins");
            pending.write_all(b"half").expect("written");
            // The system removes a nameless file by itself, even after a kill.
            assert_eq!(names(folder.path()).len(), 1 + usize::from(pending.is_named));
            drop(pending);
            assert_eq!(std::fs::read_to_string(&target).expect("there"), "old");
            assert_eq!(names(folder.path()), [target]);
        }
    }

    #[test]
    fn a_folder_that_cannot_be_written_to_is_an_error() {
        let folder = tempfile::tempdir().expect("temp");
        let file = folder.path().join("file");
        std::fs::write(&file, "no folder").expect("written");
        for create in WAYS {
            assert!(create(&file.join("target")).is_err());
            assert!(create(&folder.path().join("missing/target")).is_err());
        }
        // A folder in the target's place, there before the file or after it: then the rename fails,
        // and the temporary name goes.
        let target = folder.path().join("target");
        for create in WAYS {
            let pending = create(&target).expect("begins");
            std::fs::create_dir(&target).expect("a folder");
            assert!(pending.publish().is_err());
            let error = create(&target).expect_err("a folder").to_string();
            assert_eq!(error, "expected a file, got a folder");
            assert_eq!(names(folder.path()).len(), 2);
            std::fs::remove_dir(&target).expect("removed");
        }
    }

    #[cfg(unix)]
    #[test]
    fn links_stay_and_lead_to_the_new_file_with_the_permissions_of_the_old_one() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        for create in WAYS {
            let folder = tempfile::tempdir().expect("temp");
            let at = |name: &str| folder.path().join(name);
            std::fs::create_dir(at("below")).expect("a folder");
            symlink("below/second", at("first")).expect("linked");
            symlink("../file", at("below/second")).expect("linked");
            for text in ["new", "newer"] {
                let mut pending = create(&at("first")).expect("begins");
                pending.write_all(text.as_bytes()).expect("written");
                pending.publish().expect("published");
                assert_eq!(std::fs::read_to_string(at("file")).expect("there"), text);
                assert!(at("first").is_symlink() && at("below/second").is_symlink());
                let private = std::fs::Permissions::from_mode(0o600);
                std::fs::set_permissions(at("file"), private).expect("ours");
            }
            let mode = |path: PathBuf| std::fs::metadata(path).expect("there").permissions().mode();
            create(&at("file")).expect("begins").publish().expect("published");
            assert_eq!(mode(at("file")) & 0o777, 0o600);
            symlink("around", at("around")).expect("linked");
            assert!(create(&at("around")).is_err(), "a link to itself");
        }
    }

    #[cfg(unix)]
    #[test]
    fn devices_and_pipes_are_refused_and_stay() {
        use std::os::unix::fs::FileTypeExt;
        let (reader, writer) = io::pipe().expect("a pipe");
        let pipe = PathBuf::from(format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&writer)));
        for create in WAYS {
            for target in [Path::new("/dev/null"), &pipe] {
                let error = create(target).expect_err("no file").to_string();
                assert_eq!(
                    error,
                    "expected a file, got a device or a pipe",
                    "{}",
                    target.display()
                );
            }
        }
        drop(reader);
        let null = std::fs::metadata("/dev/null").expect("there");
        assert!(null.file_type().is_char_device());
    }
}
