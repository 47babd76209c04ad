//! Runs the lines of a batch, a bounded number at a time.

use std::collections::HashMap;
use std::io::{self, BufRead};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, watch};

use super::call::{Answer, Caller, call};
use super::done::{Done, hash};
use super::line::BatchLine;
use super::reader::{Line, LineReader};
use super::result::ResultLine;
use crate::ServeConfig;
use crate::gateway::{Gateway, Ticket};
use crate::models::{Catalog, Served};
use crate::routes;
use crate::state::{AppState, Condition};

/// Bytes of lines that are asked at the same time; a longer line is asked alone.
const HELD_BYTES: usize = 64 << 20;
/// Time between two looks at a server that may end while lines wait.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Answers lines through the routes of a server.
#[derive(Clone, Debug)]
pub struct BatchRunner {
    router: Router,
    state: AppState,
    caller: Caller,
    /// Id of the key whose limits lines obey, where it is one of a key file.
    key: Option<String>,
    /// Longest line, in bytes.
    most_line_bytes: usize,
}

/// How a batch is run.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Lines that are asked at the same time.
    pub n_parallel: usize,
    /// The only route of the batch, where it has one.
    pub endpoint: Option<String>,
}

/// Lines of a batch, so far.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, serde::Serialize)]
pub struct Counts {
    /// Lines that were read, blank ones left out.
    pub total: u64,
    /// Lines that an earlier run has answered.
    pub kept: u64,
    /// Lines that were answered.
    pub completed: u64,
    /// Lines that were not read, or answered with an error.
    pub failed: u64,
}

/// How a run has ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Ended {
    /// Every line has a result.
    Whole,
    /// It was asked to stop; lines that were being answered have no result.
    Stopped,
    /// The server answers nothing any more.
    Lost(String),
    /// The key on whose behalf lines are asked may not ask any more.
    Forbidden(String),
}

/// A file that cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The lines cannot be read.
    #[error("the input cannot be read: {0}")]
    Input(#[source] io::Error),
    /// A result cannot be written.
    #[error("a result cannot be written: {0}")]
    Output(#[source] io::Error),
    /// Results of an earlier run are of another input.
    #[error("line {line} of the input is not the one whose result is there: {why}")]
    OtherInput {
        /// Its number, from 1.
        line: u64,
        /// The difference.
        why: String,
    },
}

/// Progress and results of a run.
pub trait Sink {
    /// Keeps a result.
    ///
    /// # Errors
    ///
    /// When there is no room for it; the run ends.
    fn keep(&mut self, result: &ResultLine) -> io::Result<()>;

    /// Looks at the counts after each line.
    fn count(&mut self, counts: Counts);
}

/// A run on its way.
struct Run<'r, S> {
    sink: &'r mut S,
    counts: Counts,
    /// Names of the lines so far, by their hashes, and the line of each.
    names: HashMap<u64, u64>,
}

/// A line that is being answered.
struct Asked {
    line: u64,
    n_bytes: usize,
    custom_id: String,
    request_id: String,
    answer: Answer,
}

impl BatchRunner {
    /// Answers lines by one model, without a server.
    pub fn new(served: Served, most_line_bytes: usize) -> Self {
        let config = ServeConfig { max_body_bytes: most_line_bytes, ..ServeConfig::default() };
        let caller = config.access.first();
        let names: Vec<String> = config.access.names().map(str::to_owned).collect();
        let gateway = Gateway::open(&config.gateway, &names);
        let gateway = gateway.expect("invariant: these settings name no file");
        Self::of(&AppState::new(Catalog::of(served), config, gateway), caller, None)
    }

    /// Answers lines for a caller of a server, under the limits of its tenant and of its key.
    pub(crate) fn of(state: &AppState, caller: Caller, key: Option<String>) -> Self {
        let most_line_bytes = state.config().max_body_bytes;
        let (router, state) = (routes::inner(state.clone()), state.clone());
        Self { router, state, caller, key, most_line_bytes }
    }

    /// Runs the lines of `input` that are not `done`, until all have results or `stop` becomes true.
    ///
    /// A thread reads the lines, so that results are kept and `stop` is seen while the next line is
    /// awaited. It ends with the input, or at the next line after the run has ended.
    ///
    /// # Errors
    ///
    /// See [`RunError`]. Results that were kept before stay.
    pub async fn run(
        &self,
        input: impl BufRead + Send + 'static,
        done: &Done,
        options: &RunOptions,
        sink: &mut impl Sink,
        mut stop: watch::Receiver<bool>,
    ) -> Result<(Ended, Counts), RunError> {
        let mut lines = read_ahead(LineReader::new(input, self.most_line_bytes))?;
        let mut run = Run { sink, counts: Counts::default(), names: HashMap::new() };
        let mut running = FuturesUnordered::new();
        let (mut n_held, mut is_read) = (0, false);
        loop {
            let has_room = running.len() < options.n_parallel.max(1)
                && (running.is_empty() || n_held < HELD_BYTES);
            if is_read && running.is_empty() {
                return Ok((Ended::Whole, run.counts));
            }
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return Ok((Ended::Stopped, run.counts)),
                Some(asked) = running.next() => {
                    let asked: Asked = asked;
                    n_held -= asked.n_bytes;
                    if let Some(ended) = run.finish(asked)? {
                        return Ok((ended, run.counts));
                    }
                }
                line = lines.recv(), if !is_read && has_room => {
                    let Some((number, line)) = line.transpose().map_err(RunError::Input)? else {
                        is_read = true;
                        continue;
                    };
                    if let Some(line) = run.take(number, line, done, options)? {
                        n_held += line.body.len();
                        running.push(self.ask(number, line));
                    }
                }
            }
        }
    }

    /// Asks a line until it is answered.
    async fn ask(&self, line: u64, request: BatchLine) -> Asked {
        let BatchLine { custom_id, url, body } = request;
        let n_bytes = body.len();
        let request_id = crate::wire::fresh_id("req-");
        loop {
            let answer = match self.let_in() {
                Ok(caller) => call(&self.router, caller, url, &request_id, body.clone()).await,
                Err(why) => Answer::Forbidden(why),
            };
            match answer {
                Answer::Later(wait) => self.wait(wait).await,
                answer => return Asked { line, n_bytes, custom_id, request_id, answer },
            }
        }
    }

    /// The caller with a new ticket, as if its key had been sent again.
    fn let_in(&self) -> Result<(Caller, Arc<Ticket>), String> {
        let again = |id: &String| {
            let found = self.state.gateway().key_again(id, self.caller.tenant);
            found.map_err(|why| format!("the key `{id}`, which began the batch: {why}"))
        };
        let key = self.key.as_ref().map(again).transpose()?;
        Ok(self.caller.with_ticket(&self.state, key.as_ref()))
    }

    /// Waits before a line is asked again; not longer than the server answers.
    async fn wait(&self, mut left: Duration) {
        while !left.is_zero() && self.state.condition() == Condition::Serving {
            let step = left.min(LOOK_AGAIN);
            tokio::time::sleep(step).await;
            left -= step;
        }
    }
}

/// Reads lines on a thread of its own, one ahead of those that were received.
fn read_ahead(
    mut lines: LineReader<impl BufRead + Send + 'static>,
) -> Result<mpsc::Receiver<io::Result<(u64, Line)>>, RunError> {
    let (sender, receiver) = mpsc::channel(1);
    let read = move || {
        while let Some(line) = lines.next().transpose() {
            let is_last = line.is_err();
            if sender.blocking_send(line).is_err() || is_last {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().name("batch-lines".to_owned());
    thread.spawn(read).map_err(RunError::Input)?;
    Ok(receiver)
}

impl<S: Sink> Run<'_, S> {
    /// Checks a line; a bad one has its result at once, and one that is done none.
    fn take(
        &mut self,
        number: u64,
        line: Line,
        done: &Done,
        options: &RunOptions,
    ) -> Result<Option<BatchLine>, RunError> {
        self.counts.total += 1;
        let read = match line {
            Line::Whole(bytes) => {
                let read = BatchLine::read(&bytes, options.endpoint.as_deref());
                read.map_err(|bad| (bad.custom_id, bad.why))
            }
            Line::TooLong => Err((None, "it is longer than a request may be".to_owned())),
        };
        let custom_id = match &read {
            Ok(line) => Some(line.custom_id.clone()),
            Err((custom_id, _)) => custom_id.clone(),
        };
        let first =
            custom_id.as_deref().map(|name| *self.names.entry(hash(Some(name))).or_insert(number));
        if done.has(number) {
            if !done.is_named(number, custom_id.as_deref()) {
                let name =
                    custom_id.map_or("no name".to_owned(), |name| format!("the name `{name}`"));
                let why = format!("it has {name}, and the result has another");
                return Err(RunError::OtherInput { line: number, why });
            }
            self.counts.kept += 1;
            self.sink.count(self.counts);
            return Ok(None);
        }
        let (code, why) = match (read, first) {
            (Ok(line), Some(first)) if first != number => {
                let why = format!("the custom_id `{}` is that of line {first}", line.custom_id);
                ("duplicate_custom_id", why)
            }
            (Ok(line), _) => return Ok(Some(line)),
            (Err((_, why)), _) => ("invalid_line", why),
        };
        self.keep(&ResultLine::failed(number, custom_id, code, &why))?;
        Ok(None)
    }

    /// Keeps the answer of a line; the end of the run where nothing is answered any more.
    fn finish(&mut self, asked: Asked) -> Result<Option<Ended>, RunError> {
        let Asked { line, custom_id, request_id, answer, .. } = asked;
        match answer {
            Answer::Whole(status, body) => {
                let result = ResultLine::answered(line, custom_id, request_id, (status, body));
                self.keep(&result).map(|()| None)
            }
            Answer::Stopped(why) => Ok(Some(Ended::Lost(why))),
            Answer::Forbidden(why) => Ok(Some(Ended::Forbidden(why))),
            Answer::Later(_) => unreachable!("a line is asked until it is answered"),
        }
    }

    fn keep(&mut self, result: &ResultLine) -> Result<(), RunError> {
        self.sink.keep(result).map_err(RunError::Output)?;
        match result.is_success {
            true => self.counts.completed += 1,
            false => self.counts.failed += 1,
        }
        self.sink.count(self.counts);
        Ok(())
    }
}
