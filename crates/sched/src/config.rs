//! The inputs of a scheduler: its sizes and choices once, time and prices each step.

use crate::outlook::terms;
use crate::{Arrival, Choices, KvAllocation, PriorityOrder, StateConfig, StepCost};
use pelton_base::{KvWindows, ServiceParams};
use std::time::Duration;

/// The sizes and choices of one scheduler.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SchedulerConfig {
    /// KV blocks of the pool; at least one.
    pub n_blocks: u32,
    /// KV blocks of the swap store in host memory; zero for none.
    pub n_host_blocks: u32,
    /// Tokens per block; at least one.
    pub block_size: usize,
    /// Most tokens of one sequence, prompt and output together; at least two.
    pub max_context: usize,
    /// Lanes and snapshots of the recurrent layers; `None` for a model without such layers.
    pub states: Option<StateConfig>,
    /// Layers with an attention window whose keys and values are freed behind it; `None` for a model
    /// without such layers.
    pub windows: Option<KvWindows>,
    /// How requests share these blocks.
    pub choices: Choices,
}

impl SchedulerConfig {
    /// Default choices over this pool, without a swap store.
    pub fn new(n_blocks: u32, block_size: usize) -> Self {
        Self {
            n_blocks,
            n_host_blocks: 0,
            block_size,
            max_context: usize::MAX,
            states: None,
            windows: None,
            choices: Choices::default(),
        }
    }

    /// The rank of a request that arrives at `at` and whose prompt takes `prefill_ns` alone.
    pub(crate) fn rank(&self, at: Tick, service: &ServiceParams, prefill_ns: u64) -> i64 {
        let (_, terms) = terms(service, self);
        let priority = i64::from(service.priority);
        self.choices.policy.policy().rank(&Arrival {
            at,
            priority: match self.choices.priority_order {
                PriorityOrder::LowFirst => priority,
                PriorityOrder::HighFirst => -priority,
            },
            slo: service.slo.or(terms.slo).or(self.choices.slo),
            prefill_ns,
            max_wait_ns: nanoseconds(self.choices.max_wait),
        })
    }

    /// Most tokens that one sequence can really hold: the context, or what the whole pool holds of one
    /// sequence if that is less.
    pub fn context_tokens(&self) -> usize {
        let n_blocks = self.n_blocks as usize;
        let most = match (&self.windows, self.choices.kv_allocation) {
            (None, _) => n_blocks,
            (Some(windows), KvAllocation::Contiguous) => n_blocks / windows.n_groups(),
            (Some(windows), KvAllocation::Paged) => {
                windows.most_tokens(n_blocks, self.block_size).min(self.n_token_blocks() as usize)
            }
        };
        self.max_context.min(most.saturating_mul(self.block_size))
    }

    /// Blocks that tokens can be in. They are the blocks of the pool, unless all layers have windows:
    /// then the pool only has the last tokens of each sequence, and the prefix cache many more.
    pub(crate) fn n_token_blocks(&self) -> u32 {
        match &self.windows {
            Some(windows) if windows.is_all => {
                let for_one = self.max_context.div_ceil(self.block_size).min(1 << 20) as u32 + 1;
                self.n_blocks.saturating_mul(16).max(for_one)
            }
            _ => self.n_blocks,
        }
    }

    /// Blocks of the pool that a sequence of `n_tokens` tokens holds.
    pub(crate) fn n_held(&self, n_tokens: usize) -> usize {
        let n_blocks = self.blocks_for(n_tokens);
        match (&self.windows, self.choices.kv_allocation) {
            (None, _) => n_blocks,
            (Some(windows), KvAllocation::Contiguous) => windows.n_taken(n_blocks, n_blocks),
            (Some(windows), KvAllocation::Paged) => windows.n_held(n_blocks, 0, self.block_size),
        }
    }

    /// Most drafts after `n_tokens` known tokens that the recurrent layers can take.
    pub(crate) fn draft_room(&self, n_tokens: usize) -> usize {
        self.states.as_ref().map_or(usize::MAX, |states| states.draft_room(n_tokens))
    }

    /// Blocks that hold `n_tokens` tokens.
    pub fn blocks_for(&self, n_tokens: usize) -> usize {
        n_tokens.div_ceil(self.block_size)
    }

    /// Blocks kept free when a sequence joins others, so that those can grow for a while before
    /// the newcomer has to be preempted: one in a hundred, at least one.
    pub(crate) fn watermark_blocks(&self) -> usize {
        (self.n_blocks as usize / 100).max(1)
    }

    /// Blocks that must be free again before anyone is let in after a preemption: four times the
    /// watermark, so that the newcomer does not meet the pressure that others just gave way to.
    pub(crate) fn recovery_blocks(&self) -> usize {
        (4 * self.watermark_blocks()).min(self.n_blocks as usize)
    }

    /// Panics if a size or a choice is out of its range.
    pub(crate) fn check(&self) {
        assert!(self.n_blocks > 0, "n_blocks must be at least 1");
        assert!(self.block_size > 0, "block_size must be at least 1");
        assert!(self.context_tokens() > 1, "a context holds a prompt token and an output token");
        if let Some(states) = &self.states {
            states.check(self.block_size);
        }
        if let Some(windows) = &self.windows {
            windows.check();
            assert!(self.states.is_none(), "recurrent layers beside layers with freed windows");
        }
        if let Err(error) = self.choices.check() {
            panic!("{error}");
        }
    }
}

/// A moment: nanoseconds since the engine started. It only ever grows.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Tick(pub u64);

impl Tick {
    /// Nanoseconds from `earlier` to here; zero when it is not earlier.
    pub(crate) fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// A duration in nanoseconds, in 64 bits.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Measurements and limits that the scheduler gets each step, as plain numbers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Signals {
    /// Cost of steps, as measured so far.
    pub cost: StepCost,
    /// Mean error of the times that were predicted by it, in parts per million of the measured ones.
    pub cost_error_ppm: u64,
    /// Most tokens of this step; the configured limit bounds it too. At least one is taken.
    pub max_batch_tokens: usize,
    /// Most sequences running at once; the configured limit bounds it too. At least one is taken.
    pub max_running: usize,
    /// Tokens of the largest step that the prices were learned from; zero while there is none.
    pub n_tried_tokens: usize,
}

impl Default for Signals {
    /// Nothing measured, nothing limited.
    fn default() -> Self {
        let (max_batch_tokens, max_running, n_tried_tokens) = (usize::MAX, usize::MAX, usize::MAX);
        let (cost, cost_error_ppm) = (StepCost::default(), 0);
        Self { cost, cost_error_ppm, max_batch_tokens, max_running, n_tried_tokens }
    }
}

/// Why a request is not taken.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Refusal {
    /// There is no token to start from.
    EmptyPrompt,
    /// `max_tokens` is zero: nothing is asked for.
    NothingToGenerate,
    /// The prompt leaves no room for even one more token.
    PromptTooLong {
        /// Tokens of the prompt.
        n_prompt: usize,
        /// Longest prompt that can run, in tokens.
        limit: usize,
    },
    /// Too many requests of this tenant wait already.
    TenantQueueFull {
        /// Its name.
        tenant: String,
        /// Most that may wait.
        limit: usize,
        /// When to try again.
        retry_after: Duration,
    },
    /// The first token would come too late.
    DeadlineUnreachable {
        /// The target for the time to the first token.
        ttft: Duration,
        /// The time that it is expected to take.
        expected: Duration,
        /// When to try again; `None` where the prompt alone takes longer.
        retry_after: Option<Duration>,
    },
}

impl Refusal {
    /// When the same request may be taken; `None` where it never will.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::TenantQueueFull { retry_after, .. } => Some(*retry_after),
            Self::DeadlineUnreachable { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::EmptyPrompt => write!(f, "the prompt is empty"),
            Self::NothingToGenerate => write!(f, "max_tokens is 0"),
            Self::PromptTooLong { n_prompt, limit } => {
                write!(f, "the prompt has {n_prompt} tokens, the longest that fits has {limit}")
            }
            Self::TenantQueueFull { tenant, limit, .. } => {
                write!(f, "{limit} requests of `{tenant}` wait already, which is its limit")
            }
            Self::DeadlineUnreachable { ttft, expected, retry_after } => {
                let (expected, ttft) = (expected.as_millis(), ttft.as_millis());
                let when = if retry_after.is_none() { ", without any queue," } else { "," };
                write!(
                    f,
                    "the first token is expected after {expected} ms{when} and the target is {ttft} ms"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KvWindows;
    use pelton_base::Reach;

    #[test]
    fn where_all_layers_have_windows_the_pool_does_not_bound_the_context() {
        let windows = KvWindows { reach: Reach::Last(32), n_blocks: 2, is_all: true };
        let config = SchedulerConfig {
            max_context: 4096,
            windows: Some(windows),
            ..SchedulerConfig::new(10, 16)
        };
        assert_eq!(config.n_token_blocks(), 4096 / 16 + 1, "one sequence as long as can be");
        let larger = SchedulerConfig { n_blocks: 100, ..config };
        assert_eq!(larger.n_token_blocks(), 16 * 100, "sixteen times the pool");
        let unbounded = SchedulerConfig { max_context: usize::MAX, ..larger };
        assert_eq!(unbounded.n_token_blocks(), (1 << 20) + 1, "and not without a bound");
        let some = unbounded.windows.map(|windows| KvWindows { is_all: false, ..windows });
        let mixed = SchedulerConfig { windows: some, ..SchedulerConfig::new(100, 16) };
        assert_eq!(mixed.n_token_blocks(), 100, "other layers keep all tokens in the pool");
    }
}
