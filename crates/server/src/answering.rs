//! A growing answer whose outcome is counted.

use std::sync::Arc;

use pelton_base::{FinishReason, TenantId, Usage};
use pelton_llm::{Event, Generating};

use crate::access::Caller;
use crate::metrics::Metrics;
use crate::state::AppState;

/// A [`Generating`] whose outcome is counted in the metrics.
///
/// Dropping it before its end aborts the request; its open answers then count as aborted.
#[derive(Debug)]
pub(crate) struct Answering {
    generating: Generating,
    metrics: Arc<Metrics>,
    tenant: TenantId,
    n_ended: usize,
    is_counted: bool,
}

impl Answering {
    pub(crate) fn new(app: &AppState, caller: Caller, generating: Generating) -> Self {
        let metrics = Arc::clone(app.metrics());
        Self { generating, metrics, tenant: caller.tenant, n_ended: 0, is_counted: false }
    }

    /// The next event of any answer; `None` when all have ended. May be cancelled between events.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        let event = self.generating.next().await;
        match &event {
            Some(Event { finish: Some(finish), .. }) => {
                self.n_ended += 1;
                self.metrics.ended(self.tenant, finish.reason);
            }
            None if !self.is_counted => {
                self.is_counted = true;
                let timings = self.generating.timings();
                self.metrics.answered(self.tenant, self.n_choices(), self.usage(), timings);
            }
            _ => {}
        }
        event
    }

    /// Number of answers.
    pub(crate) fn n_choices(&self) -> usize {
        self.generating.n_choices()
    }

    /// Tokens of all prompts, each counted once, and of all answers so far.
    pub(crate) fn usage(&self) -> Usage {
        self.generating.usage()
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        for _ in self.n_ended..self.n_choices() {
            self.metrics.ended(self.tenant, FinishReason::Aborted);
        }
    }
}
