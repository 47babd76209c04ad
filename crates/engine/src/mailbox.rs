//! The mailbox: the only state that the engine thread shares with other threads.
//!
//! Aborts and the wish to stop are never refused and need no place in the queue, so a full
//! mailbox cannot keep an unwanted request alive.

use crate::beams::BeamParams;
use crate::clock::Clock;
use crate::progress::Progress;
use crate::stream::EventSender;
use crate::{EngineMetrics, Extras, SubmitError};
use pelton_base::{Ask, Request, RequestId};
use pelton_sched::{Outlook, PrefixMarks, Prefixes, PromptSize, Scheduler, SchedulerConfig, Tick};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// A request and the way back to its client.
#[derive(Debug)]
pub(crate) struct Submission {
    pub(crate) request: Request,
    /// As it was judged.
    pub(crate) size: PromptSize,
    pub(crate) extras: Extras,
    /// The beam search that it asks for.
    pub(crate) beams: Option<BeamParams>,
    pub(crate) events: EventSender,
    /// The client reads it at any time.
    pub(crate) progress: Arc<Progress>,
    /// Time of arrival.
    pub(crate) at: Tick,
}

/// How the engine should end.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Shutdown {
    /// Take no new request, and finish the ones at hand.
    Drain,
    /// End every request now.
    Abort,
}

/// The content of the mailbox.
#[derive(Debug, Default)]
pub(crate) struct Mail {
    pub(crate) submissions: Vec<Submission>,
    /// May name requests that have ended, or that are in `submissions`.
    pub(crate) aborts: Vec<RequestId>,
    pub(crate) shutdown: Option<Shutdown>,
}

impl Mail {
    fn is_empty(&self) -> bool {
        self.submissions.is_empty() && self.aborts.is_empty() && self.shutdown.is_none()
    }
}

/// How the engine thread ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Ended {
    /// It was asked to.
    Stopped,
    /// After a panic from which it did not recover.
    Failed,
}

#[derive(Debug, Default)]
struct State {
    mail: Mail,
    /// `None` while the engine thread takes mail.
    ended: Option<Ended>,
    next_id: u64,
    /// As of the last step.
    metrics: EngineMetrics,
    /// Prospects of a new request, with those in `mail` counted.
    outlook: Outlook,
    /// Of the requests that were taken.
    prefixes: Prefixes,
    n_refused: u64,
}

/// The mailbox, the metrics, and the bell between them.
#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    /// Rings when mail arrives.
    bell: Condvar,
    max_waiting: usize,
    pub(crate) clock: Clock,
    /// New requests are judged by it.
    pub(crate) config: SchedulerConfig,
    has_failed: watch::Sender<bool>,
    /// When the engine last took its mail, as a tick and one more; 0 while it waits for mail.
    busy_since: AtomicU64,
}

impl Shared {
    pub(crate) fn new(max_waiting: usize, config: SchedulerConfig, metrics: EngineMetrics) -> Self {
        let prefixes = Prefixes::new(&config);
        let state = State { metrics, prefixes, ..State::default() };
        let (state, bell, clock) = (Mutex::new(state), Condvar::new(), Clock::start());
        let has_failed = watch::Sender::new(false);
        let busy_since = AtomicU64::new(0);
        Self { state, bell, max_waiting, clock, config, has_failed, busy_since }
    }

    /// Judges a request, names it and leaves it in the mailbox, with where its tokens and the progress
    /// of its prompt go. It came at `at`.
    pub(crate) fn submit(
        &self,
        ask: Ask,
        (extras, beams): (Extras, Option<BeamParams>),
        (events, progress): (EventSender, Arc<Progress>),
        at: Tick,
    ) -> Result<RequestId, SubmitError> {
        let marks = match extras.prompt_logprobs {
            Some(_) => PrefixMarks::none(&ask.prompt),
            None => PrefixMarks::new(&ask.prompt, &ask.service),
        };
        let mut state = self.lock();
        match state.ended {
            Some(Ended::Failed) => return Err(SubmitError::Failed),
            Some(Ended::Stopped) => return Err(SubmitError::Stopped),
            None if state.mail.shutdown.is_some() => return Err(SubmitError::Stopped),
            None => {}
        }
        let n_waiting = state.mail.submissions.len() + state.metrics.n_waiting;
        if n_waiting >= self.max_waiting && !ask.service.is_further {
            state.n_refused += 1;
            return Err(SubmitError::Full { limit: self.max_waiting });
        }
        let size = state.prefixes.size(&marks);
        if let Err(refusal) = state.outlook.judge(size, &ask.service, &self.config) {
            state.n_refused += 1;
            return Err(SubmitError::Refused(refusal));
        }
        state.outlook.add(size, &ask.service, &self.config);
        state.prefixes.note(&marks);
        let id = RequestId(state.next_id);
        state.next_id += 1;
        let request = Request { id, ask };
        let submission = Submission { request, size, extras, beams, events, progress, at };
        state.mail.submissions.push(submission);
        self.bell.notify_one();
        Ok(id)
    }

    /// A name for one more beam of a request.
    pub(crate) fn new_id(&self) -> RequestId {
        let mut state = self.lock();
        let id = RequestId(state.next_id);
        state.next_id += 1;
        id
    }

    pub(crate) fn abort(&self, id: RequestId) {
        let mut state = self.lock();
        if state.ended.is_none() {
            state.mail.aborts.push(id);
            self.bell.notify_one();
        }
    }

    /// Asks the engine to end; a drain may become an abort but not the other way round.
    pub(crate) fn shut_down(&self, how: Shutdown) {
        let mut state = self.lock();
        state.mail.shutdown = state.mail.shutdown.max(Some(how));
        self.bell.notify_one();
    }

    /// Empties the mailbox (the wish to stop stays), after publishing how things stand; an idle
    /// engine that `waits` does so until there is something in it.
    pub(crate) fn exchange(
        &self,
        metrics: &EngineMetrics,
        scheduler: &Scheduler,
        waits: bool,
    ) -> Mail {
        self.busy_since.store(0, Ordering::Relaxed);
        let mut state = self.lock();
        self.put(&mut state, metrics, scheduler);
        while waits && scheduler.is_idle() && state.mail.is_empty() {
            state = self.bell.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let shutdown = state.mail.shutdown;
        let mail = std::mem::replace(&mut state.mail, Mail { shutdown, ..Mail::default() });
        // They wait in the scheduler from now on, until the next publication counts them there.
        state.metrics.n_waiting += mail.submissions.len();
        self.busy_since.store(self.clock.now().0.saturating_add(1), Ordering::Relaxed);
        mail
    }

    /// Time since the engine last took its mail, if it is at work.
    pub(crate) fn busy_for(&self) -> Option<Duration> {
        let since = self.busy_since.load(Ordering::Relaxed).checked_sub(1)?;
        Some(Duration::from_nanos(self.clock.now().0.saturating_sub(since)))
    }

    /// Publishes metrics and outlook.
    pub(crate) fn publish(&self, metrics: &EngineMetrics, scheduler: &Scheduler) {
        self.put(&mut self.lock(), metrics, scheduler);
    }

    fn put(&self, state: &mut State, metrics: &EngineMetrics, scheduler: &Scheduler) {
        state.metrics = *metrics;
        scheduler.outlook(&mut state.outlook);
        for Submission { request, size, .. } in &state.mail.submissions {
            state.outlook.add(*size, &request.ask.service, &self.config);
        }
    }

    /// Closes the mailbox for good and returns its content.
    pub(crate) fn end(&self, how: Ended, metrics: EngineMetrics) -> Mail {
        let mut state = self.lock();
        state.ended = Some(how);
        self.busy_since.store(0, Ordering::Relaxed);
        state.metrics = metrics;
        let mail = std::mem::take(&mut state.mail);
        drop(state);
        self.has_failed.send_replace(how == Ended::Failed);
        mail
    }

    /// Whether the engine has failed, for readers who wait for it.
    pub(crate) fn has_failed(&self) -> watch::Receiver<bool> {
        self.has_failed.subscribe()
    }

    pub(crate) fn metrics(&self) -> EngineMetrics {
        let state = self.lock();
        let mut metrics = state.metrics;
        metrics.n_waiting += state.mail.submissions.len();
        metrics.n_refused = state.n_refused;
        metrics
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every critical section leaves the state whole, so a panic elsewhere does not spoil it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use pelton_base::{SamplingParams, ServiceParams, Slo, TokenId};
    use pelton_sched::{SchedulerOutput, Signals, StepCost};
    use tokio::sync::mpsc;

    use super::*;

    #[test]
    fn the_cached_beginning_of_a_prompt_takes_no_time_from_its_target() {
        let config = SchedulerConfig::new(100, 16);
        let mut scheduler = Scheduler::new(config.clone());
        // A token takes a microsecond.
        let cost = StepCost { token_ps: 1_000_000, ..StepCost::default() };
        let signals = Signals { cost, ..Signals::default() };
        scheduler.schedule(Tick(0), &signals, &mut SchedulerOutput::default());
        let shared = Shared::new(10, config, EngineMetrics::default());
        shared.publish(&EngineMetrics::default(), &scheduler);
        let submit = |first: u32, target_us: u64, prompt_logprobs: Option<usize>| {
            let slo = Slo { ttft: Some(Duration::from_micros(target_us)), ..Slo::default() };
            let ask = Ask {
                prompt: (first..first + 200).map(TokenId).collect(),
                sampling: SamplingParams::greedy(),
                choice: 0,
                max_tokens: 1,
                stop_tokens: Vec::new(),
                service: ServiceParams { slo, ..ServiceParams::default() },
                prediction: Vec::new(),
                constraint: None,
            };
            let extras = Extras { prompt_logprobs, ..Extras::default() };
            let news = (mpsc::unbounded_channel().0, Arc::default());
            shared.submit(ask, (extras, None), news, Tick(0)).is_ok()
        };
        assert!(!submit(0, 199, None), "200 tokens take 200 microseconds");
        assert!(submit(0, 200, None));
        // The first prompt comes first.
        assert!(!submit(1, 399, None), "another prompt");
        assert!(!submit(0, 207, None), "eight tokens are no whole run");
        assert!(submit(0, 208, None));
        assert!(!submit(0, 407, Some(0)), "a scored prompt is computed whole");
        // As before, after the engine published how things stand.
        shared.publish(&EngineMetrics::default(), &scheduler);
        assert!(submit(0, 216, None), "200 and 8 microseconds wait");
    }
}
