//! The batches that run: a few at a time, each on a thread that may wait for files.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};

use super::{BatchRecord, BatchStatus, Purpose, Store, StoreError, Upload};
use crate::batch::{
    BatchRunner, Caller, Counts, Done, Ended, ResultLine, RunOptions, Sink, count_lines,
};
use crate::state::{AppState, Condition};
use crate::wire::unix_seconds;

/// Batches that run at the same time; the others wait.
const RUNNING_BATCHES: usize = 2;
/// Lines of a batch that are asked at the same time: few, so that other requests go first.
const PARALLEL_LINES: usize = 16;
/// Time between two looks at the batches that are to end.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The batches that run.
#[derive(Debug)]
pub(crate) struct Batches {
    turns: Arc<Semaphore>,
    /// Ends a batch, by its id.
    stops: Mutex<HashMap<String, Arc<watch::Sender<bool>>>>,
}

impl Default for Batches {
    fn default() -> Self {
        let turns = Arc::new(Semaphore::new(RUNNING_BATCHES));
        Self { turns, stops: Mutex::default() }
    }
}

impl Batches {
    /// Goes on with the batches that an earlier process did not end.
    pub(crate) fn resume(state: &AppState) {
        for batch in state.files().batches(None) {
            if batch.status.is_final() {
                hand_over_late(state.files(), &batch);
                continue;
            }
            match state.config().access.named(&batch.tenant) {
                Some(caller) => Self::start(state, batch, caller),
                None => state.files().fail(&batch.id, "its tenant is no tenant of this server"),
            }
        }
    }

    /// Runs a batch for a caller; it waits for its turn.
    pub(crate) fn start(state: &AppState, batch: BatchRecord, caller: Caller) {
        let left = Duration::from_secs(batch.expires_at.saturating_sub(unix_seconds()));
        let is_over = batch.status == BatchStatus::Cancelling || left.is_zero();
        let (stop, mut stopped) = watch::channel(is_over);
        let stop = Arc::new(stop);
        state.batches().lock().insert(batch.id.clone(), Arc::clone(&stop));
        let state = state.clone();
        tokio::spawn(async move {
            let id = batch.id.clone();
            let expiry = tokio::spawn(async move {
                tokio::time::sleep(left).await;
                stop.send_replace(true);
            });
            let turn = tokio::select! {
                biased;
                _ = stopped.wait_for(|stop| *stop) => None,
                turn = Arc::clone(&state.batches().turns).acquire_owned() => turn.ok(),
            };
            // A batch that has not begun when the server ends has nothing to lose.
            if state.condition() == Condition::Serving || *stopped.borrow() {
                let app = state.clone();
                let work = tokio::task::spawn_blocking(move || {
                    let _turn = turn;
                    let work = Work { state: &app, batch, caller };
                    Handle::current().block_on(work.run(stopped));
                });
                if let Err(error) = work.await {
                    tracing::error!(%error, batch = id, "a batch panicked");
                    state.files().fail(&id, "the server failed while it ran");
                }
            }
            expiry.abort();
            state.batches().lock().remove(&id);
        });
    }

    /// Asks a batch to end.
    pub(crate) fn stop(&self, id: &str) {
        if let Some(stop) = self.lock().get(id) {
            stop.send_replace(true);
        }
    }

    /// Waits until no batch runs, when nothing is answered any more.
    pub(crate) async fn ended(&self) {
        while !self.lock().is_empty() {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<watch::Sender<bool>>>> {
        self.stops.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One batch on its way.
struct Work<'a> {
    state: &'a AppState,
    batch: BatchRecord,
    caller: Caller,
}

impl Work<'_> {
    async fn run(self, stop: watch::Receiver<bool>) {
        let (store, id) = (self.state.files(), self.batch.id.clone());
        match self.answer(stop).await {
            Ok(Ended::Whole) => store.end(&id, BatchStatus::Completed),
            Ok(Ended::Stopped) => store.end(&id, BatchStatus::Expired),
            // A later process goes on with it, if the files outlive this one.
            Ok(Ended::Lost(why)) if store.is_on_disk() => {
                tracing::info!(
                    why,
                    batch = id,
                    "the batch goes on when the server is started again"
                );
            }
            Ok(Ended::Lost(why) | Ended::Forbidden(why)) => store.fail(&id, &why),
            Err(why) => store.fail(&id, &why),
        }
    }

    /// Answers the lines that have no results, and hands over all results.
    async fn answer(&self, stop: watch::Receiver<bool>) -> Result<Ended, String> {
        let BatchRecord { id, work, .. } = &self.batch;
        let store = self.state.files();
        let (mut sink, done) =
            Results::open(store, id, work.as_ref()).map_err(|error| error.to_string())?;
        let ran = self.run_lines(&mut sink, &done, stop).await;
        if matches!(ran, Ok(Ended::Lost(_))) && store.is_on_disk() {
            return ran;
        }
        // Results so far are the client's, however the batch ended.
        store.change(id, false, |batch| batch.become_(BatchStatus::Finalizing));
        match (sink.hand_over(&self.batch), ran) {
            (Ok(()), ran) => ran,
            (Err(error), Ok(_)) => Err(error.to_string()),
            (Err(error), Err(why)) => {
                Err(format!("{why}; its results are not handed over: {error}"))
            }
        }
    }

    async fn run_lines(
        &self,
        sink: &mut Results<'_>,
        done: &Done,
        stop: watch::Receiver<bool>,
    ) -> Result<Ended, String> {
        let store = self.state.files();
        let BatchRecord { id, tenant, key, input_file_id, endpoint, .. } = &self.batch;
        let file = store.file(tenant, input_file_id);
        let (_, content) = file.ok_or("the input file was deleted")?;
        let io = |error: io::Error| format!("the input file cannot be read: {error}");
        let most = self.state.config().max_body_bytes;
        let total = count_lines(content.open().map_err(io)?, most).map_err(io)?;
        store.change(id, true, |batch| {
            batch.total = total;
            batch.work = Some([sink.output.id().to_owned(), sink.errors.id().to_owned()]);
            if !batch.status.is_final() && batch.status != BatchStatus::Cancelling {
                batch.become_(BatchStatus::InProgress);
            }
        });
        let priority = self.state.config().batch_priority;
        let key = Some(key.clone()).filter(|key| !key.is_empty());
        let runner = BatchRunner::of(self.state, self.caller.at_priority(priority), key);
        let endpoint = Some(endpoint.clone());
        let options = RunOptions { n_parallel: PARALLEL_LINES, endpoint };
        let lines = content.open().map_err(io)?;
        let ran = runner.run(lines, done, &options, sink, stop).await;
        ran.map(|(ended, _)| ended).map_err(|error| error.to_string())
    }
}

/// Hands over the results of a batch that ended when there was no room for it.
fn hand_over_late(store: &Arc<Store>, batch: &BatchRecord) {
    let Some(work) = &batch.work else { return };
    let opened = Results::open(store, &batch.id, Some(work));
    if let Err(error) = opened.and_then(|(results, _)| results.hand_over(batch)) {
        tracing::warn!(%error, batch = batch.id, "results of a batch are not handed over");
    }
}

/// Results of a batch: answers in one file, errors in another.
struct Results<'a> {
    store: &'a Arc<Store>,
    id: &'a str,
    output: Upload,
    errors: Upload,
    /// Results of earlier processes.
    before: [u64; 2],
}

impl<'a> Results<'a> {
    /// Begins both files, or goes on with those of an earlier process.
    fn open(
        store: &'a Arc<Store>,
        id: &'a str,
        work: Option<&[String; 2]>,
    ) -> Result<(Self, Done), StoreError> {
        let Some(ids) = work.filter(|_| store.is_on_disk()) else {
            // Results may be longer than what a client may upload.
            let [mut output, mut errors] =
                [Upload::new(store, u64::MAX)?, Upload::new(store, u64::MAX)?];
            output.keep();
            errors.keep();
            return Ok((Self { store, id, output, errors, before: [0; 2] }, Done::default()));
        };
        let mut done = Done::default();
        let mut again = |id: &String| -> Result<(Upload, u64), StoreError> {
            let path = store.path(id, "data").ok_or(io::ErrorKind::NotFound);
            let file = path.map_err(io::Error::from).and_then(std::fs::File::open);
            let read = Done::read(io::BufReader::new(file.map_err(StoreError::Io)?));
            let (more, n_bytes) =
                read.map_err(|error| StoreError::Io(io::Error::other(error.to_string())))?;
            let n_lines = more.n_lines();
            done.merge(more);
            Ok((Upload::again(store, id, n_bytes)?, n_lines))
        };
        let ((output, n), (errors, m)) = (again(&ids[0])?, again(&ids[1])?);
        Ok((Self { store, id, output, errors, before: [n, m] }, done))
    }

    /// Makes the results files of the client; empty ones are none.
    fn hand_over(self, batch: &BatchRecord) -> Result<(), StoreError> {
        let Self { store, id, output, errors, .. } = self;
        let finish = |upload: Upload, name: &str| -> Result<Option<String>, StoreError> {
            if upload.n_bytes() == 0 {
                upload.discard();
                return Ok(None);
            }
            let name = format!("{id}_{name}.jsonl");
            let file = upload.finish(name, Purpose::BatchOutput, batch.tenant.clone())?;
            Ok(Some(file.id))
        };
        let (output, errors) = (finish(output, "output")?, finish(errors, "error")?);
        store.change(id, true, |batch| {
            (batch.output_file_id, batch.error_file_id, batch.work) = (output, errors, None);
        });
        Ok(())
    }
}

impl Sink for Results<'_> {
    fn keep(&mut self, result: &ResultLine) -> io::Result<()> {
        let file = if result.is_success { &mut self.output } else { &mut self.errors };
        file.write(result.to_line().as_bytes()).map_err(|error| match error {
            StoreError::Io(error) => error,
            other => io::Error::other(other.to_string()),
        })
    }

    fn count(&mut self, counts: Counts) {
        let [completed, failed] = self.before;
        self.store.change(self.id, false, |batch| {
            batch.completed = completed + counts.completed;
            batch.failed = failed + counts.failed;
        });
    }
}

impl Store {
    /// Ends a batch; one that was asked to end was cancelled.
    fn end(&self, id: &str, status: BatchStatus) {
        self.change(id, true, |batch| {
            let is_cancelled = batch.cancelling_at.is_some() && status == BatchStatus::Expired;
            batch.become_(if is_cancelled { BatchStatus::Cancelled } else { status });
        });
    }

    /// Ends a batch that cannot be run.
    fn fail(&self, id: &str, why: &str) {
        tracing::warn!(why, batch = id, "a batch failed");
        self.change(id, true, |batch| {
            batch.error = Some(why.to_owned());
            batch.become_(BatchStatus::Failed);
        });
    }
}
