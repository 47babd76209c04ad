//! The thread that computes vectors, and the requests that wait for it.
//!
//! ```text
//! jobs    A: a1 a2 a3 ..      B: b1      C: c1 c2
//! step    a1 b1 c1 a2 c2 a3 ..           one text of each in turn, as many as fit
//! ```
//!
//! A request with thousands of texts and a request with a single text advance together, and a step
//! is never longer than [`VectorModel::n_places`]. Each step begins with another job, so a long
//! text that did not fit beside others gets a step of its own in time.
//!
//! A step that panics fails the requests that have a text in it. A step reads nothing of an earlier
//! one, so the thread goes on; after a second panic it has failed and takes no request.
//!
//! A step may also never end. [`Queue::busy_for`] says for how long it runs, and after
//! [`Queue::abandon`] nobody waits for its thread.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pelton_base::limits;
use pelton_engine::{Panicked, guard};
use pelton_model::embed::{TypedTokens, VectorModel};
use tokio::sync::watch;

use crate::error::{LlmError, Overload};
use crate::runtime::Device;

/// Time after which to retry where too many requests wait.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Panics of the model that the thread survives.
const MOST_PANICS: u64 = 1;
/// The part of the work that is guarded here, for errors.
const STEP: &str = "a step of the embedding model";

type Vectors = Vec<Vec<f32>>;

/// Computes the rows of texts: vectors, or the logits of a classifier.
pub trait EmbedModel: Send {
    /// Blocks of rows that a step has room for; a text takes whole ones.
    fn n_places(&self) -> usize;

    /// One row for each text, in order. A text has the same row alone and beside others.
    fn embed(&mut self, texts: &[TypedTokens]) -> Vec<Vec<f32>>;
}

impl EmbedModel for VectorModel<Device> {
    fn n_places(&self) -> usize {
        self.n_places()
    }

    fn embed(&mut self, texts: &[TypedTokens]) -> Vec<Vec<f32>> {
        self.embed_typed(texts)
    }
}
type Reply = Box<dyn FnOnce(Result<Vectors, LlmError>) + Send>;

/// Waiting requests, and totals since the start.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct EmbedMetrics {
    /// Requests that are not answered yet.
    pub n_waiting: usize,
    /// Requests that were answered.
    pub n_finished: u64,
    /// Requests that were dropped before their end.
    pub n_aborted: u64,
    /// Texts that were computed.
    pub n_texts: u64,
    /// Tokens of these texts.
    pub n_tokens: u64,
    /// Steps that were computed.
    pub n_steps: u64,
    /// Time spent in steps.
    pub step_time: Duration,
    /// Steps that panicked.
    pub n_panics: u64,
}

/// A request in the queue; dropping the ticket removes the request.
#[derive(Debug)]
#[must_use]
pub struct EmbedTicket {
    is_dropped: Arc<AtomicBool>,
}

impl Drop for EmbedTicket {
    fn drop(&mut self) {
        self.is_dropped.store(true, Ordering::Relaxed);
    }
}

struct Job {
    /// Texts that are not computed yet.
    texts: VecDeque<TypedTokens>,
    /// Vectors of the texts before them.
    vectors: Vectors,
    /// Texts in the current step.
    n_taken: usize,
    is_dropped: Arc<AtomicBool>,
    reply: Reply,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    is_closed: bool,
    has_failed: bool,
    /// When the current step began.
    busy_since: Option<Instant>,
    metrics: EmbedMetrics,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    bell: Condvar,
    has_failed: watch::Sender<bool>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // After a panic the worker's drop answers all requests as stopped.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sender's side of the queue; dropping it ends the thread.
pub(super) struct Queue {
    shared: Arc<Shared>,
    /// `None` once it is abandoned.
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Queue {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// When the system gives no thread.
    pub(super) fn spawn(model: Box<dyn EmbedModel>) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("pelton-embed".to_owned())
            .spawn(move || Worker { shared: of_thread, model }.run())?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    pub(super) fn push(
        &self,
        texts: Vec<TypedTokens>,
        reply: Reply,
    ) -> Result<EmbedTicket, LlmError> {
        let mut state = self.shared.lock();
        if state.has_failed {
            return Err(LlmError::Failed);
        }
        if state.is_closed {
            return Err(LlmError::Stopped);
        }
        let n_waiting = state.jobs.len();
        if n_waiting >= limits::MAILBOX_REQUESTS {
            let why = format!("{n_waiting} requests are waiting already");
            let overload = Overload::Queue;
            return Err(LlmError::Refused { overload, why, retry_after: Some(RETRY_AFTER) });
        }
        let is_dropped = Arc::new(AtomicBool::new(false));
        let ticket = EmbedTicket { is_dropped: Arc::clone(&is_dropped) };
        let (texts, vectors) = (VecDeque::from(texts), Vec::new());
        state.jobs.push_back(Job { texts, vectors, n_taken: 0, is_dropped, reply });
        drop(state);
        self.shared.bell.notify_one();
        Ok(ticket)
    }

    pub(super) fn close(&self) {
        self.shared.lock().is_closed = true;
        self.shared.bell.notify_one();
    }

    /// How long the current step has run; `None` while there is none.
    pub(super) fn busy_for(&self) -> Option<Duration> {
        self.shared.lock().busy_since.map(|since| since.elapsed())
    }

    /// Closes the queue and lets its thread run on by itself, however long its step takes.
    pub(super) fn abandon(&self) {
        self.close();
        drop(self.take_thread());
    }

    fn take_thread(&self) -> Option<JoinHandle<()>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Whether the thread has failed, for readers who wait for it.
    pub(super) fn has_failed(&self) -> watch::Receiver<bool> {
        self.shared.has_failed.subscribe()
    }

    pub(super) fn metrics(&self) -> EmbedMetrics {
        let state = self.shared.lock();
        EmbedMetrics { n_waiting: state.jobs.len(), ..state.metrics }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.close();
        if let Some(thread) = self.take_thread() {
            // A panic of the thread has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("metrics", &self.metrics()).finish_non_exhaustive()
    }
}

struct Worker {
    shared: Arc<Shared>,
    model: Box<dyn EmbedModel>,
}

impl Worker {
    fn run(mut self) {
        while let Some(texts) = self.next_step() {
            let start = Instant::now();
            let n_tokens: usize = texts.iter().map(|text| text.tokens.len()).sum();
            let compute = || match texts.is_empty() {
                true => Vec::new(),
                false => self.model.embed(&texts),
            };
            match guard(STEP, compute) {
                Ok(vectors) => self.finish_step(vectors, n_tokens, start.elapsed()),
                Err(panicked) if self.fail_step(&panicked) => {}
                Err(_) => return,
            }
        }
    }

    /// Fails the jobs that have a text in the step; `false` where the thread has failed with it.
    fn fail_step(&self, panicked: &Panicked) -> bool {
        let mut state = self.shared.lock();
        state.busy_since = None;
        let jobs = std::mem::take(&mut state.jobs);
        let (failed, left): (Vec<Job>, _) = jobs.into_iter().partition(|job| job.n_taken > 0);
        state.jobs = left.into();
        state.metrics.n_finished += failed.len() as u64;
        state.metrics.n_panics += 1;
        state.has_failed = state.metrics.n_panics > MOST_PANICS;
        let goes_on = !state.has_failed;
        drop(state);
        tracing::error!(n_failed = failed.len(), goes_on, "a step of the embedding model panicked");
        for job in failed {
            (job.reply)(Err(panicked.clone().into()));
        }
        goes_on
    }

    /// Waits for work and takes the texts of a step; `None` once the queue is closed.
    fn next_step(&self) -> Option<Vec<TypedTokens>> {
        let mut state = self.shared.lock();
        while state.jobs.is_empty() && !state.is_closed {
            state = self.shared.bell.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.is_closed {
            return None;
        }
        let n_before = state.jobs.len();
        state.jobs.retain(|job| !job.is_dropped.load(Ordering::Relaxed));
        state.metrics.n_aborted += (n_before - state.jobs.len()) as u64;
        state.busy_since = Some(Instant::now());
        Some(take(&mut state.jobs, self.model.n_places()))
    }

    /// Hands the vectors to their jobs, and answers the jobs that are complete.
    fn finish_step(&self, vectors: Vectors, n_tokens: usize, time: Duration) {
        let mut state = self.shared.lock();
        state.busy_since = None;
        let metrics = &mut state.metrics;
        metrics.n_texts += vectors.len() as u64;
        metrics.n_tokens += n_tokens as u64;
        metrics.n_steps += u64::from(!vectors.is_empty());
        metrics.step_time += time;
        // Vectors are ordered by job, and within a job by text.
        let mut vectors = vectors.into_iter();
        let mut done = Vec::new();
        let n_jobs = state.jobs.len();
        for _ in 0..n_jobs {
            let Some(mut job) = state.jobs.pop_front() else { break };
            let n_taken = std::mem::take(&mut job.n_taken);
            job.vectors.extend(vectors.by_ref().take(n_taken));
            match job.texts.is_empty() {
                true => done.push(job),
                false => state.jobs.push_back(job),
            }
        }
        // Another job begins the next step.
        if state.jobs.len() > 1 {
            state.jobs.rotate_left(1);
        }
        state.metrics.n_finished += done.len() as u64;
        drop(state);
        for job in done {
            (job.reply)(Ok(job.vectors));
        }
    }
}

impl Drop for Worker {
    /// Answers all waiting requests, after a panic too.
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_closed = true;
        let jobs = std::mem::take(&mut state.jobs);
        let has_failed = state.has_failed;
        drop(state);
        self.shared.has_failed.send_replace(has_failed);
        for job in jobs {
            (job.reply)(Err(if has_failed { LlmError::Failed } else { LlmError::Stopped }));
        }
    }
}

/// Takes texts of the jobs in turn until one does not fit; returns them job by job.
fn take(jobs: &mut VecDeque<Job>, n_places: usize) -> Vec<TypedTokens> {
    let mut n_free = n_places;
    let mut is_more = true;
    while is_more {
        is_more = false;
        for job in jobs.iter_mut() {
            let Some(text) = job.texts.get(job.n_taken) else { continue };
            let n = VectorModel::<Device>::places_of(text.tokens.len());
            if n > n_free {
                is_more = false;
                break;
            }
            n_free -= n;
            job.n_taken += 1;
            is_more = true;
        }
    }
    jobs.iter_mut().flat_map(|job| job.texts.drain(..job.n_taken)).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use pelton_base::TokenId;

    use super::*;

    fn job(lengths: &[usize]) -> Job {
        let texts = lengths.iter().map(|n| vec![TokenId(*n as u32); *n].into()).collect();
        let is_dropped = Arc::new(AtomicBool::new(false));
        Job { texts, vectors: Vec::new(), n_taken: 0, is_dropped, reply: Box::new(|_| {}) }
    }

    fn lengths(texts: &[TypedTokens]) -> Vec<usize> {
        texts.iter().map(|text| text.tokens.len()).collect()
    }

    #[test]
    fn jobs_take_turns_and_a_step_is_never_overfull() {
        let mut jobs = VecDeque::from([job(&[1, 2, 3, 4, 5]), job(&[40]), job(&[6, 7])]);
        // Places of 16 tokens: 1 + 3 + 1, then 1 + 1, then one more.
        assert_eq!(lengths(&take(&mut jobs, 8)), [1, 2, 3, 40, 6, 7]);
        assert_eq!(jobs[0].n_taken, 3);
        assert_eq!(jobs[0].texts.len(), 2);
    }

    #[test]
    fn a_text_that_does_not_fit_ends_the_step_and_is_not_overtaken() {
        let mut jobs = VecDeque::from([job(&[16]), job(&[64]), job(&[1])]);
        assert_eq!(lengths(&take(&mut jobs, 4)), [16]);
        jobs.iter_mut().for_each(|job| job.n_taken = 0);
        jobs.pop_front();
        assert_eq!(lengths(&take(&mut jobs, 4)), [64]);
    }

    /// A model whose steps wait until the sender's side of the channel lets one through, and end with
    /// a panic where it says so.
    struct Gated(mpsc::Receiver<bool>);

    impl EmbedModel for Gated {
        fn n_places(&self) -> usize {
            64
        }

        fn embed(&mut self, texts: &[TypedTokens]) -> Vectors {
            let panics = self.0.recv().unwrap_or(false);
            assert!(!panics, "on purpose");
            texts.iter().map(|text| vec![text.tokens.len() as f32]).collect()
        }
    }

    /// A queue of a gated model, and the gate.
    fn gated() -> (Queue, mpsc::Sender<bool>) {
        let (gate, steps) = mpsc::channel();
        (Queue::spawn(Box::new(Gated(steps))).expect("a thread"), gate)
    }

    fn ask(queue: &Queue) -> (EmbedTicket, mpsc::Receiver<Result<Vectors, LlmError>>) {
        let (send, answer) = mpsc::channel();
        let reply = move |vectors| drop(send.send(vectors));
        let texts = vec![vec![TokenId(1); 3].into()];
        (queue.push(texts, Box::new(reply)).expect("it takes requests"), answer)
    }

    fn wait_until_busy(queue: &Queue) {
        while queue.busy_for().is_none() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_queue_is_busy_while_a_step_runs_and_not_after_it() {
        let (queue, gate) = gated();
        assert_eq!(queue.busy_for(), None);
        for panics in [false, true] {
            let (_ticket, answer) = ask(&queue);
            wait_until_busy(&queue);
            gate.send(panics).expect("it waits");
            let answer = answer.recv().expect("an answer");
            assert_eq!(answer.is_err(), panics);
            assert_eq!(queue.busy_for(), None);
        }
    }

    #[test]
    fn a_queue_whose_step_never_ends_can_be_dropped_once_it_is_abandoned() {
        let (queue, gate) = gated();
        let (_ticket, answer) = ask(&queue);
        wait_until_busy(&queue);
        queue.abandon();
        drop(queue);
        assert!(answer.try_recv().is_err(), "its step still runs");
        // The thread ends after its step.
        gate.send(false).expect("it waits");
        assert!(matches!(answer.recv(), Ok(Ok(_))));
    }
}
