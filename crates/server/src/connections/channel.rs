//! The bytes of a connection in the clear: as they come, or out of TLS.
//!
//! The handshake runs when the first bytes are wanted, so it has the time of a head, and its place is
//! given up like that of a silent connection.

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};

use super::stream::Stream;
use crate::error::ApiError;

/// Most bytes of a request in the clear that are read before it is refused.
const UNREAD_BYTES: usize = 64 << 10;

/// A way to read and to write a connection.
pub(super) enum Channel {
    Plain(Arc<Stream>),
    Tls(Mutex<Tls>),
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain(_) => "Plain",
            Self::Tls(_) => "Tls",
        })
    }
}

/// TLS on a socket.
pub(super) enum Tls {
    Shaking(Box<Accept<Encrypted>>),
    Open(Box<TlsStream<Encrypted>>),
    /// The handshake failed.
    Failed,
}

impl Channel {
    pub(super) fn new(stream: &Arc<Stream>, tls: Option<TlsAcceptor>) -> Self {
        match tls {
            None => Self::Plain(Arc::clone(stream)),
            Some(acceptor) => {
                let encrypted = Encrypted { stream: Arc::clone(stream), is_tls: false };
                Self::Tls(Mutex::new(Tls::Shaking(Box::new(acceptor.accept(encrypted)))))
            }
        }
    }

    pub(super) fn poll_read(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(stream) => stream.poll_read(cx, buf),
            Self::Tls(tls) => {
                let mut tls = locked(tls);
                Pin::new(ready!(tls.poll_open(cx))?).poll_read(cx, buf)
            }
        }
    }

    pub(super) fn poll_write(
        &self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(stream) => stream.poll_write(cx, bufs),
            Self::Tls(tls) => {
                let mut tls = locked(tls);
                Pin::new(ready!(tls.poll_open(cx))?).poll_write_vectored(cx, bufs)
            }
        }
    }

    pub(super) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(_) => Poll::Ready(Ok(())),
            Self::Tls(tls) => match &mut *locked(tls) {
                Tls::Open(stream) => Pin::new(stream).poll_flush(cx),
                // Nothing was written.
                Tls::Shaking(_) | Tls::Failed => Poll::Ready(Ok(())),
            },
        }
    }

    /// Says that nothing more comes, where the protocol can; the socket stays open.
    pub(super) fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(_) => Poll::Ready(Ok(())),
            Self::Tls(tls) => match &mut *locked(tls) {
                Tls::Open(stream) => Pin::new(stream).poll_shutdown(cx),
                Tls::Shaking(_) | Tls::Failed => Poll::Ready(Ok(())),
            },
        }
    }

    /// Waits for bytes, or for their end; the number of bytes that wait to be read, which stay.
    pub(super) async fn peek(&self) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.peek().await,
            Self::Tls(tls) => {
                std::future::poll_fn(|cx| {
                    let mut tls = locked(tls);
                    let stream = Pin::new(ready!(tls.poll_open(cx))?);
                    stream.poll_fill_buf(cx).map_ok(<[u8]>::len)
                })
                .await
            }
        }
    }

    /// Writes a few bytes whole, unless there is no room for them; `false` where the client is gone.
    ///
    /// To be called when everything before was flushed.
    pub(super) fn write_now(&self, cx: &mut Context<'_>, bytes: &[u8]) -> bool {
        match self {
            Self::Plain(stream) => match stream.try_write(bytes) {
                // A part of a line would be no HTTP.
                Ok(n) => n == bytes.len(),
                Err(error) => error.kind() == io::ErrorKind::WouldBlock,
            },
            Self::Tls(tls) => match &mut *locked(tls) {
                Tls::Open(stream) => match Pin::new(&mut *stream).poll_write(cx, bytes) {
                    // Bytes that the socket does not take now wait in the session.
                    Poll::Ready(Ok(n)) => {
                        n == bytes.len()
                            && !matches!(Pin::new(stream).poll_flush(cx), Poll::Ready(Err(_)))
                    }
                    Poll::Ready(Err(_)) => false,
                    Poll::Pending => true,
                },
                Tls::Shaking(_) | Tls::Failed => false,
            },
        }
    }
}

impl Tls {
    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&mut TlsStream<Encrypted>>> {
        if let Self::Shaking(accept) = self {
            match ready!(Pin::new(accept).poll(cx)) {
                Ok(stream) => *self = Self::Open(Box::new(stream)),
                Err(error) => {
                    *self = Self::Failed;
                    return Poll::Ready(Err(error));
                }
            }
        }
        match self {
            Self::Open(stream) => Poll::Ready(Ok(stream)),
            _ => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

fn locked(tls: &Mutex<Tls>) -> MutexGuard<'_, Tls> {
    // After a panic inside rustls the connection is of no use, and fails by itself.
    tls.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The socket below TLS. It finds out by the first byte whether the client speaks TLS at all.
#[derive(Debug)]
pub(super) struct Encrypted {
    stream: Arc<Stream>,
    is_tls: bool,
}

impl Encrypted {
    /// Answers a request in the clear, so that its sender sees more than a closed connection.
    fn refuse(&self) {
        static ANSWER: LazyLock<String> = LazyLock::new(|| {
            let error = ApiError::needs_https();
            let body = serde_json::to_string(&error.envelope()).expect("invariant: it is JSON");
            format!(
                "HTTP/1.1 {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
                 connection: close\r\n\r\n{body}",
                error.status,
                body.len()
            )
        });
        // A socket that closes with bytes unread resets the connection, and the answer is lost.
        let (mut part, mut n_read) = ([0; 4096], 0);
        while let Ok(n @ 1..) = self.stream.try_read(&mut part) {
            n_read += n;
            if n_read > UNREAD_BYTES {
                break;
            }
        }
        if let Err(error) = self.stream.try_write(ANSWER.as_bytes()) {
            tracing::debug!(%error, "a request in the clear got no answer");
        }
    }
}

impl AsyncRead for Encrypted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let n_before = buf.filled().len();
        ready!(self.stream.poll_read(cx, buf))?;
        if !self.is_tls
            && let Some(first) = buf.filled().get(n_before)
        {
            // A method of HTTP; records of TLS begin with a number below 32.
            if first.is_ascii_alphabetic() {
                self.refuse();
                return Poll::Ready(Err(io::Error::other("a request in the clear")));
            }
            self.is_tls = true;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream.poll_write(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream.poll_write(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
