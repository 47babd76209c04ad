//! The time of a gateway.

use std::fmt;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use pelton_gateway::Now;

/// Tells the rules of a gateway what time it is.
pub(super) struct Clock(Box<dyn Fn() -> Now + Send + Sync>);

impl Clock {
    /// The clocks of the system.
    pub(super) fn of_system() -> Self {
        let started = Instant::now();
        Self::new(move || {
            let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            Now { elapsed: started.elapsed(), unix_seconds: since_1970.as_secs() }
        })
    }

    /// A clock that shows what `now` returns.
    pub(super) fn new(now: impl Fn() -> Now + Send + Sync + 'static) -> Self {
        Self(Box::new(now))
    }

    pub(super) fn now(&self) -> Now {
        self.0()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Clock").field(&self.now()).finish()
    }
}
