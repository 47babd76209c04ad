//! Measures blocks, with the ceilings before and after each.

use std::ops::ControlFlow;

use pelton_kernels::Cpu;

use super::Named;
use super::report::{Report, Row};
use super::timing::Timing;

/// Settings that all blocks share.
pub(super) struct Bench<'a> {
    /// The kernels and the team.
    pub(super) cpu: &'a Cpu,
    /// Seconds per call, and per reading of the ceilings.
    pub(super) seconds: f64,
    /// Memory that the ceiling of reads goes through.
    pub(super) beyond_caches_bytes: usize,
    /// Asked between rounds.
    pub(super) is_stopped: &'a dyn Fn() -> bool,
}

impl Bench<'_> {
    /// Measures the calls of a block and adds their rows to the report; a stop keeps the rows of
    /// the calls that were complete.
    pub(super) fn measure(&self, named: &Named, report: &mut Report) {
        let mut timed = Vec::new();
        // After a break there are fewer rows, and nothing else to do.
        let _ = (named.block.calls)(self.cpu, &mut |call| match Timing::of(
            call.run,
            self.seconds,
            self.is_stopped,
        ) {
            Some(timing) => {
                timed.push((call.cost, timing));
                ControlFlow::Continue(())
            }
            None => ControlFlow::Break(()),
        });
        // The last reading was just before this block.
        let before = report.last_reading();
        let after = self.cpu.measure_ceilings(self.beyond_caches_bytes, self.seconds);
        report.add_reading(after);
        let ceilings = before.max(after);
        report.rows.extend(
            timed.into_iter().map(|(cost, timing)| Row::new(named, cost, timing, &ceilings)),
        );
    }
}
