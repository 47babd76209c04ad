//! Where clients connect: an address, a Unix socket, or both.

#[cfg(unix)]
mod unix;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use tokio::net::{TcpListener, TcpSocket};

use crate::ServeConfig;
use crate::connections::Stream;
use crate::serve::ServeError;

#[cfg(unix)]
pub(crate) use self::unix::check;

/// Connections that the system holds until they are accepted. With tokio's 128, a burst makes the
/// system drop further ones, whose clients try again a second later.
const BACKLOG: u32 = 1024;

/// Which users of this machine may connect to a Unix socket.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum SocketAccess {
    /// The user of the server: mode 600.
    #[default]
    Owner,
    /// The user and the group of the server: mode 660.
    Group,
    /// Every user: mode 666.
    All,
}

impl SocketAccess {
    /// Every value.
    pub const ALL: [Self; 3] = [Self::Owner, Self::Group, Self::All];

    /// Its name on the command line and in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Owner => "owner",
            Self::Group => "group",
            Self::All => "all",
        }
    }

    /// Permissions of the socket's file.
    #[cfg(unix)]
    fn mode(self) -> u32 {
        match self {
            Self::Owner => 0o600,
            Self::Group => 0o660,
            Self::All => 0o666,
        }
    }
}

/// A Unix socket that cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnixSocketError {
    /// Another server answers there.
    #[error("another server listens on it")]
    Taken,
    /// Something else has this name.
    #[error("the file exists and is no socket; choose another path, or remove it")]
    NoSocket,
    /// The system has none, or refuses.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Addresses that a server listens on. The file of its Unix socket is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Listeners {
    tcp: Option<TcpListener>,
    #[cfg(unix)]
    unix: Option<unix::Listener>,
}

impl Listeners {
    /// Takes the address and the socket of the settings.
    pub(crate) async fn open(config: &ServeConfig) -> Result<Self, ServeError> {
        let tcp = match config.tcp() {
            None => None,
            Some((host, port)) => {
                Some(listen(host, port).await.map_err(|source| ServeError::Bind {
                    host: host.to_owned(),
                    port,
                    source,
                })?)
            }
        };
        let path = config.unix_socket.as_deref();
        let refused = |path: &Path, why| ServeError::UnixSocket { path: path.to_owned(), why };
        #[cfg(unix)]
        let unix = path
            .map(|path| {
                let opened = unix::Listener::open(path, config.unix_socket_access);
                opened.map_err(|why| refused(path, why))
            })
            .transpose()?;
        #[cfg(not(unix))]
        if let Some(path) = path {
            return Err(refused(path, io::Error::from(io::ErrorKind::Unsupported).into()));
        }
        Ok(Self {
            tcp,
            #[cfg(unix)]
            unix,
        })
    }

    /// The address that it listens on, if any.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref()?.local_addr().ok()
    }

    /// The next connection, and the address of its client; clients of a Unix socket have none.
    pub(crate) async fn accept(&self) -> io::Result<(Stream, Option<SocketAddr>)> {
        let tcp = async {
            let Some(listener) = &self.tcp else { return std::future::pending().await };
            let (stream, address) = listener.accept().await?;
            Ok((Stream::Tcp(stream), Some(address)))
        };
        #[cfg(unix)]
        let unix = async {
            let Some(listener) = &self.unix else { return std::future::pending().await };
            Ok((Stream::Unix(listener.accept().await?), None))
        };
        #[cfg(not(unix))]
        let unix = std::future::pending();
        tokio::select! {
            accepted = tcp => accepted,
            accepted = unix => accepted,
        }
    }
}

impl ServeConfig {
    /// Host and port to listen on: without a Unix socket always, beside one if a host or a port is
    /// chosen.
    pub fn tcp(&self) -> Option<(&str, u16)> {
        let is_chosen = self.host.is_some() || self.port.is_some();
        let host = self.host.as_deref().unwrap_or(DEFAULT_HOST);
        let is_on = self.unix_socket.is_none() || is_chosen;
        is_on.then_some((host, self.port.unwrap_or(DEFAULT_PORT)))
    }

    /// Finds out whether the certificate can be used. Another server may run meanwhile.
    ///
    /// # Errors
    ///
    /// [`ServeError::Tls`].
    pub fn check_certificate(&self) -> Result<(), ServeError> {
        self.tls.check()?;
        if self.tls.is_on() && self.tcp().is_none() {
            return Err(crate::tls::TlsError::NoAddress.into());
        }
        Ok(())
    }

    /// Finds out whether the certificate and the Unix socket can be used, without taking anything.
    /// To be asked before models are loaded, which takes long.
    ///
    /// # Errors
    ///
    /// [`ServeError::Tls`] and [`ServeError::UnixSocket`].
    pub fn check(&self) -> Result<(), ServeError> {
        self.check_certificate()?;
        #[cfg(unix)]
        if let Some(path) = &self.unix_socket {
            let path: &PathBuf = path;
            check(path).map_err(|why| ServeError::UnixSocket { path: path.clone(), why })?;
        }
        Ok(())
    }
}

/// The host where none is chosen.
const DEFAULT_HOST: &str = "127.0.0.1";
/// The port where none is chosen.
const DEFAULT_PORT: u16 = 8000;

/// Listens on the first address of a host that can be listened on.
async fn listen(host: &str, port: u16) -> io::Result<TcpListener> {
    let listen_on = |address: SocketAddr| {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // Connections of an earlier server that still close do not keep the port.
        #[cfg(unix)]
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    let mut outcome = Err(io::Error::new(io::ErrorKind::NotFound, "the host has no address"));
    for address in tokio::net::lookup_host((host, port)).await? {
        outcome = listen_on(address);
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unix_socket_takes_the_place_of_the_address_unless_one_is_chosen() {
        let tcp = |host: Option<&str>, port: Option<u16>, socket: Option<&str>| {
            let (host, unix_socket) = (host.map(str::to_owned), socket.map(PathBuf::from));
            let config = ServeConfig { host, port, unix_socket, ..ServeConfig::default() };
            config.tcp().map(|(host, port)| format!("{host}:{port}"))
        };
        let at = |address: &str| Some(address.to_owned());
        assert_eq!(tcp(None, None, None), at("127.0.0.1:8000"));
        assert_eq!(tcp(Some("::1"), Some(9), None), at("::1:9"));
        assert_eq!(tcp(None, None, Some("s")), None);
        assert_eq!(tcp(None, Some(0), Some("s")), at("127.0.0.1:0"));
        assert_eq!(tcp(Some("0.0.0.0"), None, Some("s")), at("0.0.0.0:8000"));
    }
}
