//! The socket of a connection: of TCP, or of this machine.
//!
//! It is read and written through a shared reference, because the connection is also watched for
//! its end while a request is being answered.

use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};

use tokio::io::{Interest, ReadBuf};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;

/// A socket.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

/// The same call on either kind.
macro_rules! on {
    ($stream:expr, $socket:ident => $call:expr) => {
        match $stream {
            Stream::Tcp($socket) => $call,
            #[cfg(unix)]
            Stream::Unix($socket) => $call,
        }
    };
}

impl Stream {
    /// Whether its client is a program of this machine that may open the socket's file.
    pub(super) fn is_unix(&self) -> bool {
        !matches!(self, Self::Tcp(_))
    }

    /// Sends each write at once: chunks of a stream are small.
    pub(super) fn send_at_once(&self) {
        match self {
            Self::Tcp(socket) => {
                if let Err(error) = socket.set_nodelay(true) {
                    tracing::debug!(%error, "a connection keeps its delay");
                }
            }
            // It knows no delay.
            #[cfg(unix)]
            Self::Unix(_) => {}
        }
    }

    pub(super) fn poll_read(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(on!(self, socket => socket.poll_read_ready(cx)))?;
            match self.try_read(buf.initialize_unfilled()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
                Ok(n) => {
                    buf.advance(n);
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }

    pub(super) fn poll_write(
        &self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(on!(self, socket => socket.poll_write_ready(cx)))?;
            match on!(self, socket => socket.try_write_vectored(bufs)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    pub(super) fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        on!(self, socket => socket.try_read(buf))
    }

    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        on!(self, socket => socket.try_write(bytes))
    }

    /// Waits for bytes, or for their end; the number of bytes, at most 1, that wait to be read.
    pub(super) async fn peek(&self) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.peek(&mut [0]).await,
            #[cfg(unix)]
            Self::Unix(socket) => {
                let peek = || {
                    let mut byte = [std::mem::MaybeUninit::uninit()];
                    socket2::SockRef::from(socket).peek(&mut byte)
                };
                socket.async_io(Interest::READABLE, peek).await
            }
        }
    }

    /// Waits until the socket is known to be broken, as after a reset.
    pub(super) async fn broken(&self) {
        let _ = on!(self, socket => socket.ready(Interest::ERROR).await);
    }
}
