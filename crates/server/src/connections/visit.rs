//! One connection: its socket, its place, and how far the current request has come.
//!
//! ```text
//!   Head ─────► Asked ─────► Answered ─────► Ended ─────► Idle ─────► Head ..
//!        whole        answer        its last       all        a byte
//!        head         begins        byte is        is sent    comes
//!                                   made
//! ```
//!
//! **Has the client gone, or will it only send no more?** Both look the same: the socket reads to
//! its end. Only a write tells them apart, because a socket that is closed answers it with a reset.
//! Before an answer begins, the server therefore sends the interim answer `100 Continue`, which
//! clients of HTTP/1.1 must skip (RFC 9110, section 15.2). HTTP/1.0 has none, so its clients count
//! as gone. A stream of events gets a comment line, unless an event is there to be written.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{Request, Version, header};
use axum::response::Response;
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;

use super::channel::Channel;
use super::places::Place;
use super::stream::Stream;
use crate::access_log::Line;
use crate::metrics::Timed;
use crate::routes::is_for_operators;

/// Asks a client whether it is still there.
const STILL_THERE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// The same within a stream of events: a comment, which clients skip.
const STILL_THERE_EVENT: &[u8] = b":\n\n";
/// Answers that come sooner need no such question.
const ASK_AFTER: Duration = Duration::from_millis(20);
/// Pause between two looks behind bytes that wait to be read.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// How far the current request has come.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Head,
    Asked { version: Version },
    Answered,
    Ended,
    Idle,
}

#[derive(Debug)]
struct Progress {
    step: Step,
    /// Whether the system has taken every byte that was written.
    is_flushed: bool,
    /// Whether a stream of events is to ask the client whether it is still there.
    is_asking: bool,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Visit {
    // Both hold the socket, which closes before the place is free.
    channel: Channel,
    stream: Arc<Stream>,
    pub(super) place: Place,
    progress: Mutex<Progress>,
}

impl Visit {
    /// A connection that begins, in TLS if there is an acceptor.
    pub(super) fn new(stream: Stream, tls: Option<TlsAcceptor>, place: Place) -> Arc<Self> {
        let progress =
            Mutex::new(Progress { step: Step::Head, is_flushed: true, is_asking: false });
        let stream = Arc::new(stream);
        let channel = Channel::new(&stream, tls);
        Arc::new(Self { channel, stream, place, progress })
    }

    /// Whether its client came through the Unix socket.
    pub(super) fn is_unix(&self) -> bool {
        self.stream.is_unix()
    }

    /// A whole head has come; false if there are too many requests already.
    pub(super) fn asked(&self, request: &Request<Incoming>) -> bool {
        self.progress().step = Step::Asked { version: request.version() };
        self.place.begin_request(is_for_operators(request.uri().path()))
    }

    /// The answer to it begins.
    fn answered(&self) {
        let mut progress = self.progress();
        (progress.step, progress.is_asking) = (Step::Answered, false);
    }

    /// Whether a stream of events is to ask now; true once per question.
    fn takes_question(&self) -> bool {
        std::mem::take(&mut self.progress().is_asking)
    }

    /// The answer is made, and handed over to be sent.
    fn ended(&self) {
        self.progress().step = Step::Ended;
    }

    fn received(&self) {
        let mut progress = self.progress();
        if progress.step == Step::Idle {
            progress.step = Step::Head;
            self.place.set_head();
        }
    }

    fn flushed(&self) {
        let mut progress = self.progress();
        progress.is_flushed = true;
        if progress.step == Step::Ended {
            progress.step = Step::Idle;
            self.place.set_idle();
        }
    }

    /// Waits, while a request is being answered, until its client has gone. A client that has only
    /// closed its sending half is asked from time to time whether it is still there.
    pub(super) async fn gone(&self, ask_every: Duration) {
        loop {
            match self.channel.peek().await {
                Ok(0) => break,
                // The rest of a body, or a further request: its end cannot be seen yet.
                Ok(_) => sleep(LOOK_AGAIN).await,
                Err(_) => return,
            }
        }
        let mut reset = pin!(self.stream.broken());
        let mut pause = ASK_AFTER;
        loop {
            tokio::select! {
                () = &mut reset => return,
                () = sleep(pause) => {}
            }
            if !poll_fn(|cx| Poll::Ready(self.ask_whether_it_is_there(cx))).await {
                return;
            }
            // The stream is asked for its next bytes, and finds the question.
            tokio::task::yield_now().await;
            pause = ask_every;
        }
    }

    /// False if the client is known to have gone, or counts as gone.
    fn ask_whether_it_is_there(&self, cx: &mut Context<'_>) -> bool {
        let mut progress = self.progress();
        progress.is_asking = true;
        match progress.step {
            Step::Asked { version } if version < Version::HTTP_11 => false,
            Step::Asked { .. } if progress.is_flushed => self.channel.write_now(cx, STILL_THERE),
            // Bytes of an answer ask the client as well.
            _ => true,
        }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The bytes of a connection. The socket closes when the last holder of the [`Visit`] is dropped.
#[derive(Debug)]
pub(super) struct Socket(pub(super) Arc<Visit>);

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self(visit) = &*self;
        let n_before = buf.filled().len();
        let read = visit.channel.poll_read(cx, buf);
        if buf.filled().len() > n_before {
            visit.received();
        }
        read
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.progress().is_flushed = false;
        self.0.channel.poll_write(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Called when everything that was to be written has been written.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = self.0.channel.poll_flush(cx);
        if matches!(flushed, Poll::Ready(Ok(()))) {
            self.0.flushed();
        }
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.channel.poll_shutdown(cx)
    }
}

/// The body of an answer; its end is that of the request.
#[derive(Debug)]
pub(super) struct Answer {
    body: Body,
    /// Whether each frame is a whole event, and a comment may stand between two.
    is_events: bool,
    visit: Arc<Visit>,
    /// Written to the log when this is dropped.
    _line: Option<Arc<Line>>,
    /// Measures until this is dropped.
    _timed: Option<Arc<Timed>>,
}

impl Answer {
    pub(super) fn new(mut response: Response, visit: Arc<Visit>) -> Response<Self> {
        visit.answered();
        let kind = response.headers().get(header::CONTENT_TYPE);
        let is_events = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        let (line, timed) =
            (response.extensions_mut().remove(), response.extensions_mut().remove());
        response.map(|body| Self { body, is_events, visit, _line: line, _timed: timed })
    }
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if frame.is_pending() && self.is_events && self.visit.takes_question() {
            let comment = Frame::data(Bytes::from_static(STILL_THERE_EVENT));
            return Poll::Ready(Some(Ok(comment)));
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.visit.ended();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ServeConfig;
    use crate::connections::places::{Phase, Places};

    #[tokio::test]
    async fn an_answer_keeps_its_place_until_it_is_sent() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let _client = tokio::net::TcpStream::connect(address).await.expect("connected");
        let (stream, address) = listener.accept().await.expect("accepted");
        let place = Places::new(&ServeConfig::default()).enter(Some(address.ip())).await;
        let visit = Visit::new(Stream::Tcp(stream), None, place.expect("a place"));
        let mut socket = Socket(Arc::clone(&visit));
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let is_in_request = || matches!(visit.place.phase(), Some(Phase::Request { .. }));
        assert!(visit.place.begin_request(false));
        visit.answered();
        assert!(Pin::new(&mut socket).poll_flush(&mut cx).is_ready());
        assert!(is_in_request(), "more of the answer may come");
        visit.ended();
        assert!(is_in_request(), "its last bytes are not sent yet");
        assert!(Pin::new(&mut socket).poll_flush(&mut cx).is_ready());
        assert!(matches!(visit.place.phase(), Some(Phase::Idle(_))));
        visit.received();
        assert!(matches!(visit.place.phase(), Some(Phase::Head(_))));
    }
}
