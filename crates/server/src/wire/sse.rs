//! Server-sent events: one `data:` line per chunk, `[DONE]` at the end.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use pelton_base::Usage;
use pelton_llm::{Event, Timings};
use serde::Serialize;
use tokio::time::timeout;

use super::{Now, StreamOptions};
use crate::answering::Answering;
use crate::error::ApiError;
use crate::state::{AppState, Running};

/// Time between two comments on the progress of a prompt.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

/// Turns events into the chunks of one endpoint.
pub(crate) trait StreamState: Send + 'static {
    /// Chunks that come before the first event.
    fn start(&mut self, out: &mut Chunks);
    /// Where counts and times are written before each event and before the end, in a stream that shows
    /// them.
    fn now(&mut self) -> Option<&mut Now> {
        None
    }

    /// Chunks for one event.
    fn event(&mut self, event: Event, out: &mut Chunks);
    /// Chunks after the last event, after a failure too.
    fn end(&mut self, usage: Usage, out: &mut Chunks);

    /// The chunk that says what failed. It comes after all others.
    fn failed(&mut self, error: &ApiError, out: &mut Chunks) {
        out.push(&error.envelope());
    }

    /// The data of the very last chunk, if there is one.
    const DONE: Option<&str> = Some("[DONE]");
}

/// One event of a stream.
#[derive(Debug)]
struct Chunk {
    /// Its kind, in streams whose events have one.
    name: Option<&'static str>,
    data: String,
}

impl Chunk {
    fn new(name: Option<&'static str>, chunk: &impl Serialize) -> Self {
        let data = serde_json::to_string(chunk).expect("invariant: chunks are plain data");
        Self { name, data }
    }

    fn event(self) -> SseEvent {
        let event = SseEvent::default();
        let event = match self.name {
            Some(name) => event.event(name),
            None => event,
        };
        event.data(self.data)
    }
}

/// Chunks that wait to be sent.
#[derive(Debug, Default)]
pub(crate) struct Chunks {
    queue: VecDeque<Chunk>,
    failure: Option<ApiError>,
}

impl Chunks {
    /// Adds one chunk.
    pub(crate) fn push(&mut self, chunk: &impl Serialize) {
        self.queue.push_back(Chunk::new(None, chunk));
    }

    /// Adds one chunk with the line `event: NAME` before it.
    pub(crate) fn push_named(&mut self, name: &'static str, chunk: &impl Serialize) {
        self.queue.push_back(Chunk::new(Some(name), chunk));
    }

    /// Ends the stream with an error. It comes last, because clients read nothing after it.
    pub(crate) fn fail(&mut self, error: ApiError) {
        self.failure.get_or_insert(error);
    }
}

/// Where a stream gets its events from.
pub(crate) trait Source: Send + 'static {
    /// The next event; `None` when all answers have ended.
    fn next(&mut self) -> impl Future<Output = Option<Event>> + Send;
    /// Tokens of the request so far.
    fn usage(&self) -> Usage;
    /// Times of the request so far.
    fn timings(&self) -> Timings;
    /// Tokens of all prompts that are computed so far, and in all.
    fn prompt_progress(&self) -> (usize, usize);
}

impl Source for Answering {
    fn next(&mut self) -> impl Future<Output = Option<Event>> + Send {
        Answering::next(self)
    }

    fn usage(&self) -> Usage {
        Answering::usage(self)
    }

    fn timings(&self) -> Timings {
        Answering::timings(self)
    }

    fn prompt_progress(&self) -> (usize, usize) {
        Answering::prompt_progress(self)
    }
}

struct Stream<S, E> {
    state: S,
    source: E,
    chunks: Chunks,
    is_done: bool,
    /// Whether the client wants to hear of the prompt's progress; not after the first event.
    shows_progress: bool,
    /// Counts as running until the client has gone or everything is sent.
    _running: Option<Running>,
}

impl<S: StreamState, E: Source> Stream<S, E> {
    /// The next chunk. Dropping the future or the stream aborts the request.
    async fn next(mut self) -> Option<(Result<SseEvent, Infallible>, Self)> {
        loop {
            if let Some(chunk) = self.chunks.queue.pop_front() {
                return Some((Ok(chunk.event()), self));
            }
            if self.is_done {
                return None;
            }
            let has_failed = self.chunks.failure.is_some();
            let event = if has_failed {
                None
            } else if self.shows_progress {
                match timeout(PROGRESS_INTERVAL, self.source.next()).await {
                    Ok(event) => event,
                    Err(_) => {
                        let (n, n_all) = self.source.prompt_progress();
                        let comment = SseEvent::default().comment(format!("prompt {n}/{n_all}"));
                        return Some((Ok(comment), self));
                    }
                }
            } else {
                self.source.next().await
            };
            self.shows_progress = false;
            if let Some(now) = self.state.now() {
                *now = Now { usage: self.source.usage(), timings: self.source.timings() };
            }
            match event {
                Some(event) => self.state.event(event, &mut self.chunks),
                None => {
                    self.state.end(self.source.usage(), &mut self.chunks);
                    if let Some(error) = self.chunks.failure.take() {
                        self.state.failed(&error, &mut self.chunks);
                    }
                    let done = S::DONE.map(|data| Chunk { name: None, data: data.to_owned() });
                    self.chunks.queue.extend(done);
                    self.is_done = true;
                }
            }
        }
    }
}

/// Answers with a stream of events.
pub(crate) fn sse(
    app: &AppState,
    running: Running,
    answering: Answering,
    options: StreamOptions,
    state: impl StreamState,
) -> Response {
    respond(answering, Some(running), state, options.prompt_progress, app.config().keep_alive)
}

/// Answers with the chunks that `state` makes of the events of `source`.
pub(crate) fn respond(
    source: impl Source,
    running: Option<Running>,
    mut state: impl StreamState,
    shows_progress: bool,
    keep_alive: Duration,
) -> Response {
    let mut chunks = Chunks::default();
    state.start(&mut chunks);
    let stream =
        Stream { state, source, chunks, is_done: false, shows_progress, _running: running };
    let events = futures_util::stream::unfold(stream, Stream::next);
    let keep_alive = KeepAlive::new().interval(keep_alive).text("keep-alive");
    let mut response = Sse::new(events).keep_alive(keep_alive).into_response();
    // Asks proxies not to buffer the answer, which would delay the stream.
    response.headers_mut().insert("x-accel-buffering", axum::http::HeaderValue::from_static("no"));
    response
}
