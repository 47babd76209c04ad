//! An answer that is a stream of server-sent events.
//!
//! ```text
//!   producer, a future ──give──► Outbox ──take──► Body ──frame──► connection
//! ```
//!
//! The body drives the producer itself, without a task or a channel between: while a model decodes,
//! each of its tokens passes here once. A frame holds whole events, so that a comment may be sent
//! between any two frames.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use hyper::body::Frame;
use serde::Serialize;
use tokio::time::{Instant, Sleep, sleep};

/// Bytes that most events take; longer ones grow the buffer.
const EVENT_BYTES: usize = 512;

/// The comment of a stream that has been silent for long, so that no proxy takes it for dead.
const STILL_ALIVE: &[u8] = b": keep-alive\n\n";

/// Adds an event to `out`: the line `event: NAME`, if it has a name, and its data as one line of JSON.
pub(crate) fn write_event(out: &mut Vec<u8>, name: Option<&str>, data: &impl Serialize) {
    write_start(out, name);
    serde_json::to_writer(&mut *out, data).expect("invariant: events are plain data");
    out.extend_from_slice(b"\n\n");
}

/// The same with data that is one line of text already.
pub(crate) fn write_line(out: &mut Vec<u8>, name: Option<&str>, data: &str) {
    debug_assert!(!data.contains(['\n', '\r']), "a line break would end the event");
    write_start(out, name);
    out.extend_from_slice(data.as_bytes());
    out.extend_from_slice(b"\n\n");
}

fn write_start(out: &mut Vec<u8>, name: Option<&str>) {
    if out.is_empty() {
        out.reserve(EVENT_BYTES);
    }
    if let Some(name) = name {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(name.as_bytes());
        out.push(b'\n');
    }
    out.extend_from_slice(b"data: ");
}

/// Passes events from a producer to the body of its answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outbox(Arc<Mutex<Vec<u8>>>);

impl Outbox {
    /// Hands over what `bytes` holds, if anything, and waits until it is taken.
    pub(crate) async fn give(&self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        self.with(|waiting| waiting.append(bytes));
        // Nobody need be woken: the body takes the bytes when its producer waits, and asks again.
        poll_fn(|_| match self.with(|waiting| waiting.is_empty()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }

    fn take(&self) -> Vec<u8> {
        self.with(std::mem::take)
    }

    fn with<T>(&self, f: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Answers with the events that a producer gives to its [`Outbox`], until it ends. A stream that is
/// silent for `keep_alive` gets a comment, again and again; one without stays silent.
///
/// Dropping the answer drops the producer.
pub(crate) fn stream<P>(keep_alive: Option<Duration>, produce: impl FnOnce(Outbox) -> P) -> Response
where
    P: Future<Output = ()> + Send + 'static,
{
    let outbox = Outbox::default();
    let events = Events {
        producer: Some(Box::pin(produce(outbox.clone()))),
        outbox,
        silence: keep_alive.map(Silence::new),
    };
    let mut response = Response::new(Body::new(events));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Asks proxies not to buffer the answer, which would delay the stream.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// The body of such an answer.
struct Events<P> {
    /// `None` once it has ended.
    producer: Option<Pin<Box<P>>>,
    outbox: Outbox,
    silence: Option<Silence>,
}

impl<P: Future<Output = ()>> hyper::body::Body for Events<P> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(producer) = &mut self.producer
            && producer.as_mut().poll(cx).is_ready()
        {
            self.producer = None;
        }
        let bytes = self.outbox.take();
        if !bytes.is_empty() {
            self.silence.iter_mut().for_each(Silence::broken);
            return Poll::Ready(Some(Ok(Frame::data(bytes.into()))));
        }
        if self.producer.is_none() {
            return Poll::Ready(None);
        }
        let Some(silence) = &mut self.silence else { return Poll::Pending };
        ready!(silence.poll_too_long(cx));
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(STILL_ALIVE)))))
    }
}

/// Measures how long a stream has been silent.
///
/// An event only notes the time. The timer is set anew when it rings, not with each event.
struct Silence {
    longest: Duration,
    since: Instant,
    timer: Pin<Box<Sleep>>,
}

impl Silence {
    fn new(longest: Duration) -> Self {
        Self { longest, since: Instant::now(), timer: Box::pin(sleep(longest)) }
    }

    fn broken(&mut self) {
        self.since = Instant::now();
    }

    /// Ready when the silence has lasted too long; it then begins anew.
    fn poll_too_long(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.timer.as_mut().poll(cx));
            let is_over = self.since.elapsed() >= self.longest;
            if is_over {
                self.since = Instant::now();
            }
            self.timer.as_mut().reset(self.since + self.longest);
            if is_over {
                return Poll::Ready(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use hyper::body::Body as _;
    use tokio::time::advance;

    use super::*;

    /// The next frame as text; `None` at the end.
    async fn frame(response: &mut Response) -> Option<String> {
        let body = response.body_mut();
        let frame = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await?.expect("no error");
        let data = frame.into_data().expect("data, not trailers");
        Some(String::from_utf8(data.to_vec()).expect("UTF-8"))
    }

    #[tokio::test]
    async fn events_come_in_order_and_in_frames_as_they_are_given() {
        let mut response = stream(None, async |outbox| {
            let mut out = Vec::new();
            outbox.give(&mut out).await;
            write_event(&mut out, None, &"a\nb");
            write_line(&mut out, Some("named"), "c");
            outbox.give(&mut out).await;
            assert!(out.is_empty());
            tokio::task::yield_now().await;
            write_line(&mut out, None, "last");
            outbox.give(&mut out).await;
        });
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        assert_eq!(response.headers()["cache-control"], "no-cache");
        let first = frame(&mut response).await;
        assert_eq!(first.as_deref(), Some("data: \"a\\nb\"\n\nevent: named\ndata: c\n\n"));
        assert_eq!(frame(&mut response).await.as_deref(), Some("data: last\n\n"));
        assert_eq!(frame(&mut response).await, None);
        assert_eq!(frame(&mut response).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_stream_gets_comments_counted_from_its_last_event() {
        let second = Duration::from_secs(1);
        let mut response = stream(Some(10 * second), async |outbox| {
            let mut out = Vec::new();
            sleep(Duration::from_secs(8)).await;
            write_line(&mut out, None, "event");
            outbox.give(&mut out).await;
            sleep(Duration::from_secs(25)).await;
        });
        let begun = Instant::now();
        let mut seen = Vec::new();
        while let Some(frame) = frame(&mut response).await {
            seen.push((begun.elapsed().as_secs(), frame));
            advance(Duration::from_millis(1)).await;
        }
        let comment = |at| (at, ": keep-alive\n\n".to_owned());
        assert_eq!(seen, [(8, "data: event\n\n".to_owned()), comment(18), comment(28)]);
    }
}
