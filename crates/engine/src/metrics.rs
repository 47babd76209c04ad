//! The counters of the loop.

use crate::{ChartsSnapshot, Latencies, Limits, SpecStats, StepTokens};
use pelton_base::{KvWindows, Slo};
use pelton_sched::StepCost;
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
    /// Requests that ended with an error because their own code panicked.
    pub n_panicked: u64,
    /// Times that the engine started anew after a panic in a step, which ended all its requests.
    pub n_restarts: u64,
    /// Prompt tokens computed; computing one anew after a preemption counts again.
    pub prompt_tokens: u64,
    /// Tokens handed to streams.
    pub generated_tokens: u64,
    /// Time spent in steps (schedule, execute, update, hand out), summed.
    pub step_time: Duration,
    /// The part of it that the scheduler took.
    pub schedule_time: Duration,
    /// The part of it that the executor took.
    pub execute_time: Duration,
    /// The part of the executor's time in which it waited for masks of rules.
    pub mask_time: Duration,
    /// Requests taken.
    pub n_submitted: u64,
    /// Requests ended, for any reason.
    pub n_finished: u64,
    /// Requests that were not taken because of their tenant or their target
    /// ([`SubmitError::Refused`](crate::SubmitError::Refused)), or because too many wait.
    pub n_refused: u64,
    /// Times that a request gave its blocks up for another.
    pub n_preemptions: u64,
    /// KV blocks copied to the host.
    pub swapped_out_blocks: u64,
    /// KV blocks copied back.
    pub swapped_in_blocks: u64,
    /// KV blocks copied so that a request can write where other requests read.
    pub copied_blocks: u64,
    /// KV blocks that the prefix cache forgot to make room.
    pub n_evicted_blocks: u64,
    /// Prompt tokens of ended requests whose KV was found in the cache.
    pub cached_prompt_tokens: u64,
    /// Times that the controller shrank a limit.
    pub n_shrunk: u64,
    /// Times that it let one grow.
    pub n_grown: u64,
    /// Gauge: the limits of a step, as the controller has them.
    pub limits: Limits,
    /// Targets of requests that state none.
    pub slo: Slo,
    /// Gauge: prices of a step; all zero while unknown.
    pub cost: StepCost,
    /// Gauge: mean error of the predicted time of a step, in millionths of the measured one.
    pub cost_error_ppm: u64,
    /// Gauge: latencies of the time before the last step, as far as the charts reach.
    pub recent: ChartsSnapshot,
    /// Latencies since the start, for an exporter.
    pub latencies: Latencies,
    /// Tokens of each step, for an exporter.
    pub step_tokens: StepTokens,
    /// Counts of speculation.
    pub spec: SpecStats,
    /// Gauge: requests that hold blocks.
    pub n_running: usize,
    /// Gauge: requests that wait for blocks, in the mailbox or the scheduler.
    pub n_waiting: usize,
    /// Gauge: blocks that a request could have.
    pub n_free_blocks: usize,
    /// Blocks of the pool.
    pub n_blocks: usize,
    /// Tokens of a block.
    pub block_tokens: usize,
    /// Layers whose blocks are freed behind an attention window.
    pub windows: Option<KvWindows>,
    /// Blocks of the swap memory.
    pub n_host_blocks: usize,
}
