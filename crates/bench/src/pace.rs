//! Lets the requests of a trace arrive: at their time, or as earlier ones end.

use std::pin::Pin;
use std::time::{Duration, Instant};

use pelton_sim::trace::{Trace, TraceRequest};
use tokio::task::JoinSet;

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
/// the moment that all times count from. Each request is a step of `progress`. Returns whether
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
    loop {
        if next.is_none() && under_way.is_empty() {
            return Ok(false);
        }
        let due = match (next, pace) {
            (None, _) => None,
            (Some(request), Pace::Clock) => Some(started + Duration::from_nanos(request.at_ns)),
            (Some(_), Pace::Concurrency(n)) => (under_way.len() < n).then_some(started),
        };
        tokio::select! {
            biased;
            // Requests that are still under way are dropped, which aborts them.
            () = &mut stop => return Ok(true),
            () = until(due), if due.is_some() => {
                let mut request = next.expect("invariant: something is due");
                if pace != Pace::Clock {
                    request.at_ns = since(started, Instant::now());
                }
                match served.begin(&request)? {
                    Some(following) => drop(under_way.spawn(following)),
                    None => one_more(),
                }
                next = requests.next().transpose()?;
            }
            Some(ended) = under_way.join_next() => {
                served.end(ended.map_err(|error| BenchError::failed(error.to_string()))?);
                one_more();
            }
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

/// Nanoseconds from one moment to a later one.
pub(crate) fn since(started: Instant, at: Instant) -> u64 {
    u64::try_from(at.saturating_duration_since(started).as_nanos()).unwrap_or(u64::MAX)
}
