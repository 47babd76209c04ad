//! A growing answer whose outcome is counted.

use std::sync::Arc;

use pelton_base::{FinishReason, TenantId, Usage};
use pelton_llm::{Event, Generating};

use crate::access::Caller;
use crate::access_log::{Generated, Line};
use crate::metrics::Metrics;
use crate::state::{AppState, Running};

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
    line: Option<Arc<Line>>,
    /// Why the latest answer ended.
    reason: Option<FinishReason>,
}

impl Answering {
    pub(crate) fn new(
        app: &AppState,
        running: &Running,
        caller: Caller,
        generating: Generating,
    ) -> Self {
        Self {
            generating,
            metrics: Arc::clone(app.metrics()),
            tenant: caller.tenant,
            n_ended: 0,
            is_counted: false,
            line: running.line().cloned(),
            reason: None,
        }
    }

    /// The next event of any answer; `None` when all have ended. May be cancelled between events.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        let event = self.generating.next().await;
        match &event {
            Some(Event { finish: Some(finish), .. }) => {
                self.n_ended += 1;
                self.reason = Some(finish.reason);
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

    /// Tokens of all prompts that are computed so far, and in all.
    pub(crate) fn prompt_progress(&self) -> (usize, usize) {
        self.generating.prompt_progress()
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
        if let Some(line) = &self.line {
            let reason = self.reason.filter(|_| self.n_ended == self.n_choices());
            let (usage, timings) = (self.usage(), self.generating.timings());
            line.note(Generated { usage, timings, reason });
        }
    }
}
