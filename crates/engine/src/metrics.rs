//! What the loop counts, always.

use std::time::Duration;

/// A snapshot of an engine's counters, taken between two steps.
///
/// Counters only grow; gauges say how things stood after the last step.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct EngineMetrics {
    /// Steps executed, failed ones included.
    pub n_steps: u64,
    /// Steps that failed as a whole.
    pub n_failed_steps: u64,
    /// Prompt tokens computed; computing one anew after a preemption counts again.
    pub prompt_tokens: u64,
    /// Tokens handed to streams.
    pub generated_tokens: u64,
    /// Time spent in steps (schedule, execute, update, hand out), summed.
    pub step_time: Duration,
    /// Requests taken.
    pub n_submitted: u64,
    /// Requests ended, for whatever reason.
    pub n_finished: u64,
    /// Times that a request gave its blocks up for an older one.
    pub n_preemptions: u64,
    /// Gauge: requests that hold blocks.
    pub n_running: usize,
    /// Gauge: requests that wait for blocks, in the mailbox or the scheduler.
    pub n_waiting: usize,
    /// Gauge: blocks that nobody holds.
    pub n_free_blocks: usize,
    /// Blocks of the pool.
    pub n_blocks: usize,
}
