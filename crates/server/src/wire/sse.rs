//! Server-sent events: one `data:` line per chunk, `[DONE]` at the end.

use std::time::Duration;

use axum::response::Response;
use pelton_base::Usage;
use pelton_llm::{Event, Timings};
use serde::Serialize;
use tokio::time::timeout;

use super::events::{Outbox, stream, write_event, write_line};
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

/// Chunks that wait to be sent.
#[derive(Debug, Default)]
pub(crate) struct Chunks {
    bytes: Vec<u8>,
    failure: Option<ApiError>,
}

impl Chunks {
    /// Adds one chunk.
    pub(crate) fn push(&mut self, chunk: &impl Serialize) {
        write_event(&mut self.bytes, None, chunk);
    }

    /// Adds one chunk with the line `event: NAME` before it.
    pub(crate) fn push_named(&mut self, name: &'static str, chunk: &impl Serialize) {
        write_event(&mut self.bytes, Some(name), chunk);
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
    /// Whether the client wants to hear of the prompt's progress; not after the first event.
    shows_progress: bool,
    /// Counts as running until the client has gone or everything is sent.
    _running: Option<Running>,
}

impl<S: StreamState, E: Source> Stream<S, E> {
    /// Gives chunks to `outbox` until the end. Dropping the future aborts the request.
    async fn run(mut self, outbox: Outbox) {
        loop {
            outbox.give(&mut self.chunks.bytes).await;
            let event = match self.chunks.failure {
                Some(_) => None,
                None => self.next_event(&outbox).await,
            };
            if let Some(now) = self.state.now() {
                *now = Now { usage: self.source.usage(), timings: self.source.timings() };
            }
            let Some(event) = event else { break };
            self.state.event(event, &mut self.chunks);
        }
        self.state.end(self.source.usage(), &mut self.chunks);
        if let Some(error) = self.chunks.failure.take() {
            self.state.failed(&error, &mut self.chunks);
        }
        if let Some(data) = S::DONE {
            write_line(&mut self.chunks.bytes, None, data);
        }
        outbox.give(&mut self.chunks.bytes).await;
    }

    /// The next event. Comments tell how far the prompt has come until then, where they are wanted.
    async fn next_event(&mut self, outbox: &Outbox) -> Option<Event> {
        while self.shows_progress {
            match timeout(PROGRESS_INTERVAL, self.source.next()).await {
                Ok(event) => {
                    self.shows_progress = false;
                    return event;
                }
                Err(_) => {
                    let (n, n_all) = self.source.prompt_progress();
                    let mut comment = format!(": prompt {n}/{n_all}\n\n").into_bytes();
                    outbox.give(&mut comment).await;
                }
            }
        }
        self.source.next().await
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
    let events = Stream { state, source, chunks, shows_progress, _running: running };
    stream(Some(keep_alive), |outbox| events.run(outbox))
}
