//! The key file on disk: who may read it, and how it is changed.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use pelton_gateway::{KeyFile, KeyFileError};

/// Largest key file, in bytes: room for 65,536 keys with every field.
const KEY_FILE_BYTES: u64 = 32 << 20;

/// A key file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeysError {
    /// It cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// It is a folder, a pipe or a device.
    #[error("{}: expected a regular file", path.display())]
    NoFile {
        /// The file.
        path: PathBuf,
    },
    /// Other users of the machine may read or change it.
    #[error(
        "{}: other users may read or change it (mode {mode:03o}); expected mode 600: \
         `chmod 600 {}`", path.display(), path.display()
    )]
    Open {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It is longer than any list of keys.
    #[error("{}: {n_bytes} bytes; expected at most {}", path.display(), KEY_FILE_BYTES)]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its length.
        n_bytes: u64,
    },
    /// A line is no key.
    #[error("{}:{}: {}", path.display(), error.line, error.why)]
    Line {
        /// The file.
        path: PathBuf,
        /// The line and the reason.
        error: KeyFileError,
    },
}

/// Reads a key file.
///
/// # Errors
///
/// See [`KeysError`]. No message shows a hash.
pub fn read_keys(path: &Path) -> Result<KeyFile, KeysError> {
    let io = |source| KeysError::Io { path: path.to_owned(), source };
    // Before it is opened: to open a pipe would wait for its writer.
    if !std::fs::metadata(path).map_err(io)?.is_file() {
        return Err(KeysError::NoFile { path: path.to_owned() });
    }
    let file = File::open(path).map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    check_mode(path, &metadata)?;
    let n_bytes = metadata.len();
    if n_bytes > KEY_FILE_BYTES {
        return Err(KeysError::TooLarge { path: path.to_owned(), n_bytes });
    }
    let mut text = String::new();
    file.take(KEY_FILE_BYTES).read_to_string(&mut text).map_err(io)?;
    KeyFile::parse(&text).map_err(|error| KeysError::Line { path: path.to_owned(), error })
}

/// Changes a key file, or makes it, as a whole: a reader sees the old keys or the new ones. Two
/// changes at the same time wait for one another. A link stays, and the file behind it changes.
///
/// # Errors
///
/// The errors of [`read_keys`], except that there may be no file yet; those of writing; and those
/// of `change`, after which the file is as it was.
pub fn change_keys<T, E: From<KeysError>>(
    path: &Path,
    change: impl FnOnce(&mut KeyFile) -> Result<T, E>,
) -> Result<T, E> {
    let io = |source| KeysError::Io { path: path.to_owned(), source };
    let behind_links = std::fs::canonicalize(path);
    let path = behind_links.as_deref().unwrap_or(path);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let lock = File::open(folder).map_err(io)?;
    lock.lock().map_err(io)?;
    let mut keys = match read_keys(path) {
        Err(KeysError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            KeyFile::default()
        }
        keys => keys?,
    };
    let outcome = change(&mut keys)?;
    let name = path.file_name().ok_or_else(|| KeysError::NoFile { path: path.to_owned() })?;
    let mut new_name = std::ffi::OsString::from(".");
    new_name.push(name);
    new_name.push(format!(".{}", std::process::id()));
    let new = folder.join(new_name);
    let written = write_new(&new, keys.to_string().as_bytes());
    let written = written.and_then(|()| std::fs::rename(&new, path)).and_then(|()| lock.sync_all());
    if let Err(source) = written {
        let _ = std::fs::remove_file(&new);
        return Err(io(source).into());
    }
    Ok(outcome)
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(unix)]
fn check_mode(path: &Path, metadata: &std::fs::Metadata) -> Result<(), KeysError> {
    use std::os::unix::fs::MetadataExt;
    match metadata.mode() & 0o777 {
        mode if mode & 0o077 == 0 => Ok(()),
        mode => Err(KeysError::Open { path: path.to_owned(), mode }),
    }
}

#[cfg(not(unix))]
fn check_mode(_: &Path, _: &std::fs::Metadata) -> Result<(), KeysError> {
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use pelton_gateway::{Key, Limits, Scope, Scopes, SecretHash};

    use super::*;

    fn key(id: &str) -> Key {
        Key {
            id: id.to_owned(),
            hash: SecretHash::fast(id),
            scopes: Scopes::of(&[Scope::User]),
            tenant: "default".to_owned(),
            created: 0,
            expires: None,
            revoked: None,
            limits: Limits::default(),
        }
    }

    fn add(path: &Path, id: &str) -> Result<(), KeysError> {
        change_keys(path, |file| {
            file.keys.push(key(id));
            Ok(())
        })
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("keys");
        add(&path, "a").expect("made");
        let mode = std::fs::metadata(&path).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        for mode in [0o640, 0o604, 0o620, 0o666] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("set");
            let error = read_keys(&path).expect_err("others may").to_string();
            assert!(
                error.contains("chmod 600") && error.contains(&format!("{mode:03o}")),
                "{error}"
            );
            add(&path, "b").expect_err("nor is it changed");
        }
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o400)).expect("set");
        assert_eq!(read_keys(&path).expect("ours alone").keys.len(), 1);
    }

    #[test]
    fn what_is_no_file_of_keys_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("keys");
        assert!(matches!(read_keys(&path), Err(KeysError::Io { .. })));
        assert!(matches!(read_keys(folder.path()), Err(KeysError::NoFile { .. })));
        assert!(matches!(read_keys(Path::new("/dev/null")), Err(KeysError::NoFile { .. })));
        write_new(&path, b"# fine\nno key\n").expect("written");
        let error = read_keys(&path).expect_err("no key").to_string();
        assert!(error.contains("keys:2:"), "{error}");
        std::fs::remove_file(&path).expect("removed");
        write_new(&path, &[0xff; 9]).expect("written");
        read_keys(&path).expect_err("no UTF-8");
        let file = OpenOptions::new().write(true).open(&path).expect("ours");
        file.set_len(KEY_FILE_BYTES + 1).expect("sparse");
        assert!(matches!(read_keys(&path), Err(KeysError::TooLarge { .. })));
    }

    #[test]
    fn changes_at_the_same_time_lose_no_key_and_leave_no_other_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("keys");
        std::thread::scope(|scope| {
            for i in 0..16 {
                let path = &path;
                scope.spawn(move || add(path, &format!("k{i}")).expect("added"));
            }
        });
        assert_eq!(read_keys(&path).expect("keys").keys.len(), 16);
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1);
    }
}
