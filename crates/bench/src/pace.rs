//! Lets the requests of a trace arrive: at their time, or as earlier ones end.

use std::pin::Pin;
use std::time::{Duration, Instant};

use pelton_sim::trace::{Trace, TraceRequest};
use tokio::task::JoinSet;

use crate::sessions::Sessions;
use crate::{BenchError, Progress, Result};

/// The arrival of the next request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Pace {
    /// At the time of the trace, whether or not the server keeps up (an open loop).
    Clock,
    /// As soon as fewer than this many requests are under way (a closed loop).
    Concurrency(usize),
}

/// Follows one request to its end.
pub(crate) type Following<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Serves the requests of a trace.
pub(crate) trait Served {
    /// How a request ended.
    type Ended: Send + 'static;

    /// Begins a request. The returned future waits for its end; `None` means that it was refused.
    ///
    /// # Errors
    ///
    /// Nothing more can be measured.
    fn begin(&mut self, request: &TraceRequest) -> Result<Option<Following<Self::Ended>>>;

    /// Notes how a request ended.
    fn end(&mut self, ended: Self::Ended);
}

/// Serves the first `n_requests` requests of a trace, or those until `stop` completes; `started` is
/// the moment that all times count from. A turn of a session begins when the one before it has ended
/// and its user has thought, and not before its own time. Each request is a step of `progress`. Returns whether
/// `stop` came before the end.
///
/// # Errors
///
/// A trace that turns out to be wrong; an error of [`Served::begin`].
pub(crate) async fn pace(
    served: &mut impl Served,
    trace: &Trace,
    (n_requests, pace): (u64, Pace),
    started: Instant,
    stop: impl Future<Output = ()>,
    progress: &dyn Fn(Progress<'_>),
) -> Result<bool> {
    let n_steps = usize::try_from(n_requests).unwrap_or(usize::MAX);
    let mut requests = trace.requests()?.take(n_steps);
    let mut next = requests.next().transpose()?;
    let mut n_done = 0;
    progress(Progress { n_done, n_steps, label: "requests" });
    let mut one_more = || {
        n_done += 1;
        progress(Progress { n_done, n_steps, label: "requests" });
    };

    let mut stop = std::pin::pin!(stop);
    let mut under_way = JoinSet::new();
    let mut sessions = Sessions::default();
    loop {
        if next.is_none() && under_way.is_empty() && sessions.is_empty() {
            return Ok(false);
        }
        // A request of the trace comes at its own time; a turn whose user thinks, at the end of that.
        let arrival = match (next, pace) {
            (None, _) => None,
            (Some(request), Pace::Clock) => Some(started + Duration::from_nanos(request.at_ns)),
            (Some(_), Pace::Concurrency(n)) => (under_way.len() < n).then_some(started),
        };
        let turn = sessions.due().filter(|_| pace.has_place(under_way.len()));
        let due = [arrival, turn].into_iter().flatten().min();
        tokio::select! {
            biased;
            // Requests that are still under way are dropped, which aborts them.
            () = &mut stop => return Ok(true),
            () = until(due), if due.is_some() => {
                let ready = match turn.filter(|_| turn == due) {
                    Some(_) => sessions.pop(),
                    None => {
                        let request = next.take().expect("invariant: something is due");
                        next = requests.next().transpose()?;
                        sessions.admit(request, Instant::now())
                    }
                };
                let Some((mut request, at)) = ready else { continue };
                if pace != Pace::Clock {
                    request.at_ns = since(started, Instant::now());
                } else if let Some(at) = at {
                    request.at_ns = since(started, at);
                }
                match served.begin(&request)? {
                    Some(following) => {
                        let session = request.turn.map(|turn| turn.session);
                        drop(under_way.spawn(async move { (session, following.await) }));
                    }
                    None => {
                        sessions.ended(request.turn.map(|turn| turn.session), Instant::now());
                        one_more();
                    }
                }
            }
            Some(ended) = under_way.join_next() => {
                let (session, ended) =
                    ended.map_err(|error| BenchError::failed(error.to_string()))?;
                sessions.ended(session, Instant::now());
                served.end(ended);
                one_more();
            }
        }
    }
}

impl Pace {
    /// Whether one more request may be under way.
    fn has_place(self, n_under_way: usize) -> bool {
        match self {
            Self::Clock => true,
            Self::Concurrency(n) => n_under_way < n,
        }
    }
}

/// The clock of the runtime ticks once a millisecond and rounds up. The rest is slept by a thread,
/// whose clock is that of the system: a request is then sent some 0.1 ms late instead of up to 1.2
/// ms.
const TICK: Duration = Duration::from_millis(2);

async fn until(due: Option<Instant>) {
    let Some(due) = due else { return };
    let now = Instant::now();
    if let Some(early) = due.checked_sub(TICK).filter(|early| *early > now) {
        tokio::time::sleep_until(early.into()).await;
    }
    let rest = due.saturating_duration_since(Instant::now());
    if !rest.is_zero() {
        // A thread that cannot be had makes the request early by less than two ticks.
        drop(tokio::task::spawn_blocking(move || std::thread::sleep(rest)).await);
    }
}

/// Niceness of the thread that sends requests, where the system allows it: a server that computes on
/// all processors does not keep it waiting.
const NICE: i32 = -10;

/// Runs what sends requests on a thread of its own, at a higher priority than the rest where that is
/// allowed. Threads that it starts have that priority too.
///
/// # Errors
///
/// A system that starts no thread.
pub fn on_generator<T: Send>(send: impl FnOnce() -> T + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let run = || {
            // Linux counts this for the calling thread alone. Most users may not; then the report
            // shows how late requests were sent.
            if cfg!(target_os = "linux") {
                let _ = rustix::process::setpriority_process(None, NICE);
            }
            send()
        };
        let thread = std::thread::Builder::new().name("generator".to_owned());
        let thread = thread.spawn_scoped(scope, run);
        let thread = thread.map_err(|error| {
            BenchError::failed(format!("cannot start the thread that sends requests: {error}"))
        })?;
        thread.join().map_err(|_| BenchError::failed("the thread that sends requests panicked"))
    })
}

/// Nanoseconds from one moment to a later one.
pub(crate) fn since(started: Instant, at: Instant) -> u64 {
    u64::try_from(at.saturating_duration_since(started).as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_sent_by_a_thread_that_is_not_slower_than_the_rest() {
        let nice = || rustix::process::getpriority_process(None).expect("a priority");
        let own = nice();
        let (name, sending) =
            on_generator(|| (std::thread::current().name().map(str::to_owned), nice()))
                .expect("a thread");
        assert_eq!(name.as_deref(), Some("generator"));
        let is_allowed = std::thread::scope(|scope| {
            let raise = || rustix::process::setpriority_process(None, NICE).is_ok();
            scope.spawn(raise).join().expect("no panic")
        });
        assert_eq!(sending, if is_allowed { NICE } else { own });
        assert_eq!(nice(), own, "the caller stays as it is");
    }
}
