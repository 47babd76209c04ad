//! The one place where instants become ticks.

use pelton_sched::Tick;
use std::time::Instant;

/// Counts from the engine's start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    started: Instant,
}

impl Clock {
    /// A clock that starts now.
    pub(crate) fn start() -> Self {
        Self { started: Instant::now() }
    }

    /// The tick of an instant; zero for an instant before the start.
    pub(crate) fn tick(&self, at: Instant) -> Tick {
        let since = at.saturating_duration_since(self.started);
        Tick(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Now.
    pub(crate) fn now(&self) -> Tick {
        self.tick(Instant::now())
    }
}
