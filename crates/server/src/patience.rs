//! A connection whose client must read its answer in time.
//!
//! An answer is written as fast as the client reads. A client that stops reading would keep its
//! request, and the tokens computed for it, for ever; so a write that waits too long is an error.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// Reads as `T` does; writes that wait longer than its patience fail.
#[derive(Debug)]
pub(crate) struct Patient<T> {
    inner: T,
    patience: Duration,
    /// End of the patience while a write waits.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<T> Patient<T> {
    pub(crate) fn new(inner: T, patience: Duration) -> Self {
        Self { inner, patience, deadline: None }
    }

    /// Passes on the result of a write, or fails a write that has waited too long.
    fn limit<R>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<R>>,
    ) -> Poll<io::Result<R>> {
        if written.is_ready() {
            self.deadline = None;
            return written;
        }
        let patience = self.patience;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        ready!(deadline.as_mut().poll(cx));
        let why = "the client does not read its answer";
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Patient<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Patient<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.limit(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.limit(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(cx);
        self.limit(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.limit(cx, closed)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_write_that_nobody_reads_fails() {
        let (ours, theirs) = duplex(16);
        let mut ours = Patient::new(ours, PATIENCE);
        ours.write_all(&[0; 16]).await.expect("there is room for it");
        let error = ours.write_all(&[0; 1]).await.expect_err("there is no room");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(theirs);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_may_be_slow_as_long_as_it_reads() {
        let (ours, mut theirs) = duplex(16);
        let mut ours = Patient::new(ours, PATIENCE);
        let reader = async {
            let mut read = [0; 8];
            for _ in 0..100 {
                tokio::time::sleep(PATIENCE - Duration::from_secs(1)).await;
                theirs.read_exact(&mut read).await.expect("written");
            }
        };
        let (written, ()) = tokio::join!(ours.write_all(&[0; 800]), reader);
        written.expect("every write got through in time");
    }
}
