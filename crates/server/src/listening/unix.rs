//! A Unix socket: a file through which programs of this machine connect.
//!
//! ```text
//!   nothing at the path          the socket is made
//!   a socket that nobody serves  left by a server that was killed: replaced
//!   a socket that is served      refused
//!   anything else                refused, a link included
//! ```
//!
//! The permissions are set between `bind` and `listen`, so nobody connects before they hold.

use std::fs::Permissions;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::{UnixListener, UnixStream};

use super::{BACKLOG, SocketAccess, UnixSocketError};

/// A socket that is listened on; its file is removed when this is dropped.
#[derive(Debug)]
pub(super) struct Listener {
    listener: UnixListener,
    path: PathBuf,
    /// Tells the file from one that another server put in its place.
    id: (u64, u64),
}

impl Listener {
    /// Makes the socket, in place of one that nobody serves.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    pub(super) fn open(path: &Path, access: SocketAccess) -> Result<Self, UnixSocketError> {
        if check(path)? {
            std::fs::remove_file(path)?;
        }
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.bind(&SockAddr::unix(path)?)?;
        let prepare = || -> io::Result<(u64, u64)> {
            std::fs::set_permissions(path, Permissions::from_mode(access.mode()))?;
            socket.listen(BACKLOG as i32)?;
            socket.set_nonblocking(true)?;
            id(path)
        };
        let id = prepare().inspect_err(|_| {
            // It would be in the way of the next attempt.
            let _ = std::fs::remove_file(path);
        })?;
        let listener = UnixListener::from_std(socket.into())?;
        // Absolute, should the process ever change its folder.
        let path = std::path::absolute(path)?;
        Ok(Self { listener, path, id })
    }

    pub(super) async fn accept(&self) -> io::Result<UnixStream> {
        self.listener.accept().await.map(|(stream, _)| stream)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if id(&self.path).is_ok_and(|id| id == self.id)
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            tracing::warn!(%error, "the file of the Unix socket stays");
        }
    }
}

/// Whether a socket that nobody serves stands in the way.
///
/// # Errors
///
/// When something else does, or the path cannot be one of a socket.
pub(crate) fn check(path: &Path) -> Result<bool, UnixSocketError> {
    let address = SockAddr::unix(path)?;
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error.into()),
        Ok(metadata) if !metadata.file_type().is_socket() => return Err(UnixSocketError::NoSocket),
        Ok(_) => {}
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // A server with a full queue is a server, and need not be waited for.
    socket.set_nonblocking(true)?;
    match socket.connect(&address) {
        Ok(()) => Err(UnixSocketError::Taken),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Err(UnixSocketError::Taken),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Device and inode of a file.
fn id(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = std::fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777
    }

    #[tokio::test]
    async fn a_socket_has_its_mode_and_goes_with_its_server() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        for (access, expected) in SocketAccess::ALL.into_iter().zip([0o600, 0o660, 0o666]) {
            let listener = Listener::open(&path, access).expect("nothing is in the way");
            assert_eq!(mode(&path), expected, "{access:?}");
            let taken = Listener::open(&path, access).expect_err("it is served");
            assert!(matches!(taken, UnixSocketError::Taken), "{taken}");
            drop(listener);
            assert!(!path.exists(), "its file stays");
        }
    }

    #[tokio::test]
    async fn only_a_socket_that_nobody_serves_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        // The standard library leaves the file, as a server that is killed does.
        drop(std::os::unix::net::UnixListener::bind(&path).expect("bound"));
        assert!(check(&path).expect("a socket"), "nobody serves it");
        let listener = Listener::open(&path, SocketAccess::Owner).expect("replaced");
        std::os::unix::net::UnixStream::connect(&path).expect("served");
        drop(listener);

        let text = folder.path().join("text");
        std::fs::write(&text, "precious").expect("written");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&text, &link).expect("linked");
        for other in [&text, &link, &folder.path().to_owned()] {
            let error = Listener::open(other, SocketAccess::Owner).expect_err("no socket");
            assert!(matches!(error, UnixSocketError::NoSocket), "{error}");
        }
        assert_eq!(std::fs::read_to_string(&text).expect("it stays"), "precious");
    }

    #[tokio::test]
    async fn the_file_of_a_later_server_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let first = Listener::open(&path, SocketAccess::Owner).expect("free");
        std::fs::remove_file(&path).expect("an operator removes it");
        let second = Listener::open(&path, SocketAccess::Owner).expect("free again");
        drop(first);
        std::os::unix::net::UnixStream::connect(&path).expect("the second is served");
        drop(second);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_path_that_is_too_long_or_has_no_folder_is_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let long = folder.path().join("x".repeat(200));
        let error = Listener::open(&long, SocketAccess::Owner).expect_err("too long");
        assert!(error.to_string().contains("SUN_LEN"), "{error}");
        let nowhere = folder.path().join("none").join("socket");
        let error = Listener::open(&nowhere, SocketAccess::Owner).expect_err("no folder");
        assert!(
            matches!(&error, UnixSocketError::Io(error) if error.kind() == ErrorKind::NotFound)
        );
    }
}
