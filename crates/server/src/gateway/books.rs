//! The books: usage in memory, and the thread that writes it down.
//!
//! ```text
//!   note ──► rows, pending ──► the writer's thread ──► file
//!     └── round ◄── written(round) waits ◄──────────────┘
//! ```
//!
//! All that is noted while a commit runs goes into the next one, so a crowd of requests shares the
//! waiting time of one. Counts of requests with a quota are written at once, others within a second.
//! When the file cannot be written, counts stay pending and are tried again each second.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use pelton_gateway::{Counts, Filter, Ledger, Report, RowKey, Store};
use tokio::sync::watch;

/// Pause between writes that nobody waits for, and between tries after a failure.
const PAUSE: Duration = Duration::from_secs(1);

/// Usage since ever, or since the start where there is no file.
#[derive(Debug)]
pub(crate) struct Books {
    shared: Arc<Shared>,
    /// Rounds that were tried.
    tried: watch::Receiver<u64>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Wakes the writer.
    wake: Condvar,
}

#[derive(Debug)]
struct State {
    rows: BTreeMap<RowKey, Counts>,
    ledger: Ledger,
    /// The round in which the next write takes what is pending.
    round: u64,
    is_urgent: bool,
    is_closing: bool,
    /// Why the latest write failed; `None` if it did not.
    failure: Option<String>,
    has_file: bool,
}

impl Books {
    /// Books with these rows, which go on in a store.
    pub(super) fn new(rows: BTreeMap<RowKey, Counts>, store: Option<Box<dyn Store>>) -> Self {
        let (send, tried) = watch::channel(0);
        let state = State {
            rows,
            ledger: Ledger::default(),
            round: 1,
            is_urgent: false,
            is_closing: false,
            failure: None,
            has_file: store.is_some(),
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), wake: Condvar::new() });
        let writer = store.map(|store| {
            let shared = Arc::clone(&shared);
            let work = move || write(&shared, store, &send);
            let thread = std::thread::Builder::new().name("pelton-usage".to_owned());
            thread.spawn(work).expect("invariant: the system starts a thread at the start")
        });
        Self { shared, tried, writer: Mutex::new(writer) }
    }

    /// Notes counts; returns the round that writes them.
    pub(super) fn note(&self, row: RowKey, counts: &Counts, is_urgent: bool) -> u64 {
        let mut state = self.shared.state();
        state.rows.entry(row.clone()).or_default().add(counts);
        if state.has_file {
            state.ledger.note(row, counts);
            state.is_urgent |= is_urgent;
            if is_urgent {
                self.shared.wake.notify_one();
            }
        }
        state.round
    }

    /// Waits until a round was tried; at once where there is no file.
    pub(super) async fn written(&self, round: u64) {
        let mut tried = self.tried.clone();
        // It fails when there is no writer, or no longer.
        let _ = tried.wait_for(|tried| *tried >= round).await;
    }

    /// Why usage cannot be written at the moment, if it cannot.
    pub(super) fn failure(&self) -> Option<String> {
        self.shared.state().failure.clone()
    }

    /// Whether usage outlives the process.
    pub(crate) fn has_file(&self) -> bool {
        self.shared.state().has_file
    }

    /// The rows that a filter lets through.
    pub(crate) fn report(&self, filter: &Filter) -> Report {
        Report::new(&self.shared.state().rows, filter)
    }

    /// Writes what is left, and ends the writer.
    pub(crate) fn close(&self) {
        self.shared.state().is_closing = true;
        self.shared.wake.notify_one();
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writer) = writer {
            let _ = writer.join();
        }
    }
}

impl Drop for Books {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Every change is complete before its lock is released.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The writer's thread.
fn write(shared: &Shared, mut store: Box<dyn Store>, tried: &watch::Sender<u64>) {
    loop {
        let mut state = shared.state();
        while !(state.is_closing || state.is_urgent && state.failure.is_none()) {
            let (next, timeout) =
                shared.wake.wait_timeout(state, PAUSE).unwrap_or_else(PoisonError::into_inner);
            state = next;
            if timeout.timed_out() {
                break;
            }
        }
        let (round, is_closing) = (state.round, state.is_closing);
        let rows = state.ledger.take();
        (state.round, state.is_urgent) = (round + 1, false);
        drop(state);
        let outcome = if rows.is_empty() { Ok(()) } else { store.add(&rows) };
        let mut state = shared.state();
        match outcome {
            Ok(()) => {
                if state.failure.take().is_some() {
                    tracing::info!("usage is written again; nothing was lost");
                }
            }
            Err(error) => {
                if state.failure.replace(error.to_string()).is_none() {
                    tracing::error!(%error, "usage cannot be written; it is kept and tried again");
                }
                state.ledger.put_back(rows);
            }
        }
        let n_left = state.ledger.pending().len();
        drop(state);
        let _ = tried.send(round);
        if is_closing {
            if n_left > 0 {
                tracing::error!(n_left, "rows of usage are lost: they could not be written");
            }
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::Instant;

    use pelton_gateway::{Day, StoreError};

    use super::*;

    #[derive(Default)]
    struct Disk {
        rows: Arc<Mutex<BTreeMap<RowKey, Counts>>>,
        is_full: Arc<AtomicBool>,
        n_tries: Arc<AtomicU64>,
    }

    impl Store for Disk {
        fn load(&mut self) -> Result<BTreeMap<RowKey, Counts>, StoreError> {
            Ok(self.rows.lock().expect("whole").clone())
        }

        fn add(&mut self, rows: &BTreeMap<RowKey, Counts>) -> Result<(), StoreError> {
            self.n_tries.fetch_add(1, Ordering::SeqCst);
            if self.is_full.load(Ordering::SeqCst) {
                return Err(StoreError("no space left on device".to_owned()));
            }
            let mut all = self.rows.lock().expect("whole");
            rows.iter().for_each(|(row, counts)| all.entry(row.clone()).or_default().add(counts));
            Ok(())
        }
    }

    fn row() -> RowKey {
        let (key, tenant, model) = ("k".to_owned(), "t".to_owned(), "m".to_owned());
        RowKey { day: Day(20_000), key, tenant, model }
    }

    fn one() -> Counts {
        Counts { requests: 1, prompt_tokens: 2, ..Counts::default() }
    }

    #[tokio::test]
    async fn counts_are_on_the_disk_when_the_wait_ends() {
        let disk = Disk::default();
        let rows = Arc::clone(&disk.rows);
        let books = Books::new(BTreeMap::new(), Some(Box::new(disk)));
        for n in 1..=20 {
            let round = books.note(row(), &one(), true);
            books.written(round).await;
            assert!(rows.lock().expect("whole")[&row()].requests >= n);
        }
        books.note(row(), &one(), false);
        books.close();
        assert_eq!(rows.lock().expect("whole")[&row()].requests, 21, "the rest when it ends");
        assert_eq!(books.report(&Filter::default()).total.prompt_tokens, 42);
    }

    #[tokio::test]
    async fn a_full_disk_is_told_and_loses_nothing() {
        let disk = Disk::default();
        let (rows, is_full) = (Arc::clone(&disk.rows), Arc::clone(&disk.is_full));
        is_full.store(true, Ordering::SeqCst);
        let books = Books::new(BTreeMap::new(), Some(Box::new(disk)));
        let round = books.note(row(), &one(), true);
        books.written(round).await;
        assert!(books.failure().expect("it is full").contains("no space left"));
        books.note(row(), &one(), true);
        is_full.store(false, Ordering::SeqCst);
        while books.failure().is_some() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(rows.lock().expect("whole")[&row()].requests, 2);
    }

    #[tokio::test]
    async fn a_full_disk_is_tried_once_a_second_however_much_is_noted() {
        let disk = Disk::default();
        let n_tries = Arc::clone(&disk.n_tries);
        disk.is_full.store(true, Ordering::SeqCst);
        let books = Books::new(BTreeMap::new(), Some(Box::new(disk)));
        let begin = Instant::now();
        let round = books.note(row(), &one(), true);
        books.written(round).await;
        for _ in 0..100 {
            books.note(row(), &one(), true);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let n_most = 1 + begin.elapsed().as_millis() as u64 / PAUSE.as_millis() as u64;
        let n_tries = n_tries.load(Ordering::SeqCst);
        assert!((1..=n_most).contains(&n_tries), "{n_tries} tries, at most {n_most} were due");
    }

    #[tokio::test]
    async fn without_a_file_nothing_waits() {
        let books = Books::new(BTreeMap::new(), None);
        let round = books.note(row(), &one(), true);
        books.written(round).await;
        assert_eq!(books.report(&Filter::default()).total.requests, 1);
    }
}
