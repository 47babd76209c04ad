//! The simulator: the real scheduler, a fake executor, a virtual clock.
//!
//! ```text
//! now = 0
//! loop {
//!     take in requests that have arrived      outlook.judge, as the engine asks it; or refuse
//!     no request: now = next arrival
//!     schedule(now) ─▶ plan
//!     now += price of the plan's load         base + tokens + samples + attended + moved
//!     every share that samples gets a token   a function of the request and its place
//!     update ─▶ new tokens, ended requests    written into the ledger
//! }
//! ```
//!
//! A request that arrives during a step is seen after it, as in the engine. The scheduler gets the
//! true prices, which the engine has to estimate. The limit of a request ends its answer, never a
//! token, so an answer is as long as the trace says. Steps allocate nothing; arrivals do (their
//! prompt), and the ledger grows by a record for each end.
//!
//! **Liveness.** Every request that is taken must end. If no request ends for a million steps, or if
//! plans stay empty although requests wait, the run is an error with the state of the scheduler. With
//! [`SimConfig::check`] every step also checks the scheduler's integrity and each planned token.

use crate::report::Ledger;
use crate::run::Run;
use crate::trace::{TraceError, TraceRequest};
use pelton_sched::{SchedulerConfig, StepCost};
use std::ops::ControlFlow;

/// Steps between two calls of `watch`.
const WATCH_STEPS: u64 = 1_024;

/// Settings of a simulation.
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// Limits and choices of the scheduler; its tenants are numbered as those of the trace.
    pub scheduler: SchedulerConfig,
    /// Prices of steps.
    pub cost: StepCost,
    /// Deviation of a step's time, relative to it; zero for none.
    pub noise: f64,
    /// Seed of the noise.
    pub seed: u64,
    /// Whether to refuse requests that would be late, or whose tenant has too many waiting.
    pub admission: bool,
    /// Whether everything is checked in every step, which takes many times as long.
    pub check: bool,
}

impl SimConfig {
    /// No noise, admission control, and checks in debug builds only.
    pub fn new(scheduler: SchedulerConfig, cost: StepCost) -> Self {
        Self {
            scheduler,
            cost,
            noise: 0.0,
            seed: 0,
            admission: true,
            check: cfg!(debug_assertions),
        }
    }
}

/// The reason why a simulation ends early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// The trace is wrong.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The scheduler brings no request to its end.
    #[error("the scheduler is stuck after {at_ms} ms and {n_steps} steps: {state}")]
    Stuck {
        /// Simulated time.
        at_ms: u64,
        /// Steps until then.
        n_steps: u64,
        /// The state of the scheduler in its own words.
        state: String,
    },
}

/// Progress of a simulation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SimProgress {
    /// Requests that ended or were refused.
    pub n_done: u64,
    /// Simulated time, in nanoseconds.
    pub now_ns: u64,
}

/// Serves all requests of a trace. `watch` is asked now and then whether to go on; a simulation
/// that it breaks off has requests that neither ended nor were refused.
///
/// # Errors
///
/// A trace that turns out to be wrong, and a scheduler that gets stuck.
///
/// # Panics
///
/// Panics if a limit of the scheduler is below its documented minimum, and with
/// [`check`](SimConfig::check) if the scheduler contradicts itself.
pub fn simulate(
    config: &SimConfig,
    trace: impl IntoIterator<Item = Result<TraceRequest, TraceError>>,
    watch: &mut dyn FnMut(SimProgress) -> ControlFlow<()>,
) -> Result<Ledger, SimError> {
    let mut trace = trace.into_iter();
    let mut next = trace.next().transpose()?;
    let mut run = Run::new(config);
    loop {
        let mut is_judged = false;
        while let Some(request) = next.filter(|request| request.at_ns <= run.now_ns) {
            if !std::mem::replace(&mut is_judged, true) {
                run.scheduler.outlook(&mut run.outlook);
            }
            run.take_in(&request);
            next = trace.next().transpose()?;
        }
        if run.scheduler.is_idle() {
            let Some(request) = next else { break };
            run.now_ns = request.at_ns;
            continue;
        }
        run.step(next.is_some())?;
        if run.ledger.totals.steps.is_multiple_of(WATCH_STEPS) {
            let n_done = run.ledger.n_offered - run.live.len() as u64;
            if watch(SimProgress { n_done, now_ns: run.now_ns }).is_break() {
                return Ok(run.close());
            }
        }
    }
    assert_eq!(run.live.len(), 0, "an idle scheduler has forgotten somebody");
    Ok(run.close())
}
