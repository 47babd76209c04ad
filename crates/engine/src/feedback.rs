//! Prices, latencies and limits that the loop learns from its own steps and passes to the
//! scheduler.
//!
//! ```text
//! step  ── load, time ──▶ CostFit ──── prices ────▶┐
//! token ── latencies ───▶ Charts ─▶ Controller ───▶┴ Signals of the next step, EngineMetrics
//! ```

use crate::charts::{Charts, nanoseconds};
use crate::controller::{Controller, Decision, Limits};
use crate::cost::CostFit;
use crate::{EngineConfig, EngineMetrics};
use pelton_sched::{Signals, StepLoad, Tick};
use std::time::Duration;

/// Least time between two readings of the quantiles for the metrics, in nanoseconds.
const READING_NS: u64 = 100_000_000;

/// The measuring and steering parts of an engine.
#[derive(Debug)]
pub(crate) struct Feedback {
    fit: CostFit,
    pub(crate) charts: Charts,
    controller: Controller,
    n_shrunk: u64,
    n_grown: u64,
    /// When the metrics last got quantiles.
    read_at: Option<Tick>,
}

impl Feedback {
    pub(crate) fn new(config: &EngineConfig) -> Self {
        let EngineConfig { ref choices, controller, .. } = *config;
        let most = Limits { batch_tokens: choices.max_batch_tokens, running: choices.max_running };
        // Two slices in each interval of the controller.
        let slice = (controller.interval / 2).max(Duration::from_millis(1));
        Self {
            fit: CostFit::new(config.cost),
            charts: Charts::new(slice),
            controller: Controller::new(choices.slo, most, controller),
            n_shrunk: 0,
            n_grown: 0,
            read_at: None,
        }
    }

    /// The prices and limits of the next step, with `n_running` requests running.
    pub(crate) fn signals(&mut self, now: Tick, n_running: usize) -> Signals {
        if let Some(decision) = self.controller.look(now.0, &self.charts, n_running) {
            self.tell(&decision, n_running);
        }
        let Limits { batch_tokens, running } = self.controller.limits(n_running);
        Signals {
            cost: self.fit.cost(),
            cost_error_ppm: self.cost_error_ppm(),
            max_batch_tokens: batch_tokens,
            max_running: running,
            n_tried_tokens: self.fit.n_tried_tokens(),
        }
    }

    /// Takes in that a step was executed.
    pub(crate) fn executed(&mut self, now: Tick, load: &StepLoad, time: Duration) {
        let time_ns = nanoseconds(time);
        self.fit.observe(load, time_ns);
        self.charts.step.record(now.0, time_ns, 1);
    }

    /// Writes its part of the metrics; the quantiles only now and then, or when `at_once`.
    pub(crate) fn write(&mut self, now: Tick, at_once: bool, metrics: &mut EngineMetrics) {
        metrics.cost = self.fit.cost();
        metrics.cost_error_ppm = self.cost_error_ppm();
        metrics.limits = self.controller.limits(metrics.n_running);
        metrics.n_shrunk = self.n_shrunk;
        metrics.n_grown = self.n_grown;
        metrics.latencies = self.charts.totals();
        if at_once || self.read_at.is_none_or(|at| now.0.saturating_sub(at.0) >= READING_NS) {
            metrics.recent = self.charts.snapshot(0);
            self.read_at = Some(now);
        }
    }

    fn cost_error_ppm(&self) -> u64 {
        (self.fit.relative_error() * 1e6).round() as u64
    }

    fn tell(&mut self, decision: &Decision, n_running: usize) {
        let Decision { reason, before, after, read } = decision;
        let has_grown = after.batch_tokens > before.batch_tokens || after.running > before.running;
        *(if has_grown { &mut self.n_grown } else { &mut self.n_shrunk }) += 1;
        let ms = |ns: u64| ns / 1_000_000;
        tracing::info!(
            reason = reason.name(),
            n_running,
            batch_tokens = after.batch_tokens,
            batch_tokens_before = before.batch_tokens,
            running = after.running,
            running_before = before.running,
            tpot_p95_ms = ms(read.tpot.p95_ns),
            ttft_p95_ms = ms(read.ttft.p95_ns),
            "the limits of a step move"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::Reason;

    #[test]
    fn moves_of_the_limits_count_as_grown_where_either_limit_grows() {
        let mut feedback = Feedback::new(&EngineConfig::default());
        let limits = |batch_tokens, running| Limits { batch_tokens, running };
        let mut counts = |after| {
            let (reason, before) = (Reason::Roomy, limits(64, 8));
            let read = feedback.charts.snapshot(0);
            feedback.tell(&Decision { reason, before, after, read }, 8);
            (feedback.n_shrunk, feedback.n_grown)
        };
        assert_eq!(counts(limits(64, 7)), (1, 0));
        assert_eq!(counts(limits(32, 8)), (2, 0));
        assert_eq!(counts(limits(64, 9)), (2, 1));
        assert_eq!(counts(limits(96, 8)), (2, 2));
    }
}
