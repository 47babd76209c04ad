//! What an engine is told at the start, and what it is asked.

use crate::{ControllerConfig, KvCapacity, SpecConfig};
use pelton_base::{
    Constraint, Request, RequestId, SamplingParams, ServiceParams, Slo, TokenId, limits,
};
use pelton_sched::{
    Batching, Eviction, KvAllocation, PolicyKind, PreemptionMode, PriorityOrder, SchedulerConfig,
    StepCost, TenantConfig,
};
use std::time::Duration;

/// The limits and choices of one engine. The memory for KV is the executor's to know.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct EngineConfig {
    /// Most tokens of one step, over all requests; at least one.
    pub max_batch_tokens: usize,
    /// Most tokens that one request gets in one step; at least one.
    pub max_chunk_tokens: usize,
    /// Most requests computed at once; at least one.
    pub max_running_requests: usize,
    /// Most requests waiting their turn; a submission beyond it is refused.
    pub max_waiting_requests: usize,
    /// Most tokens of one request, prompt and output together; at least two. The model's context
    /// bounds it too.
    pub max_context_tokens: usize,
    /// Targets of requests that state none and whose tenant has none, and what the controller keeps.
    /// Nobody is refused for their sake.
    pub slo: Slo,
    /// How far and how often the controller moves the limits of a step.
    pub controller: ControllerConfig,
    /// What steps cost, where somebody measured it; the engine measures on.
    pub cost: Option<StepCost>,
    /// Who runs when, and what becomes of their KV.
    pub scheduling: SchedulingConfig,
    /// Whether and how tokens are guessed.
    pub spec: SpecConfig,
}

/// The choices of the scheduler, as [`SchedulerConfig`] describes them.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SchedulingConfig {
    /// Who goes first.
    pub policy: PolicyKind,
    /// Which end of the scale of priorities goes first.
    pub priority_order: PriorityOrder,
    /// Whoever waited this long goes before everyone who waited less.
    pub max_wait: Duration,
    /// When requests may join.
    pub batching: Batching,
    /// How much KV a sequence takes.
    pub kv_allocation: KvAllocation,
    /// Whether prefixes are shared between requests.
    pub prefix_cache: bool,
    /// What the prefix cache forgets first.
    pub eviction: Eviction,
    /// What becomes of the KV of a request that must give way.
    pub preemption: PreemptionMode,
    /// Whose requests these are; the first is whoever has no entry. Never empty.
    pub tenants: Vec<TenantConfig>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            max_batch_tokens: 512,
            max_chunk_tokens: 512,
            max_running_requests: 64,
            max_waiting_requests: limits::MAILBOX_REQUESTS,
            max_context_tokens: limits::MODEL_CONTEXT,
            slo: Slo::default(),
            controller: ControllerConfig::default(),
            cost: None,
            scheduling: SchedulingConfig::default(),
            spec: SpecConfig::default(),
        }
    }
}

impl Default for SchedulingConfig {
    /// What the scheduler does when nobody says.
    fn default() -> Self {
        let SchedulerConfig {
            policy,
            priority_order,
            max_wait,
            batching,
            kv_allocation,
            prefix_cache,
            eviction,
            preemption,
            tenants,
            ..
        } = SchedulerConfig::new(1, 2);
        Self {
            policy,
            priority_order,
            max_wait,
            batching,
            kv_allocation,
            prefix_cache,
            eviction,
            preemption,
            tenants,
        }
    }
}

impl EngineConfig {
    /// The same, as the scheduler over this KV takes it.
    pub(crate) fn scheduler(&self, kv: KvCapacity, max_context: usize) -> SchedulerConfig {
        let SchedulingConfig {
            policy,
            priority_order,
            max_wait,
            batching,
            kv_allocation,
            prefix_cache,
            eviction,
            preemption,
            ref tenants,
        } = self.scheduling;
        SchedulerConfig {
            n_blocks: kv.n_blocks,
            n_host_blocks: kv.n_host_blocks,
            block_size: kv.block_size,
            max_batch_tokens: self.max_batch_tokens,
            max_running: self.max_running_requests,
            max_context: self.max_context_tokens.min(max_context),
            max_chunk_tokens: self.max_chunk_tokens,
            policy,
            priority_order,
            max_wait,
            batching,
            kv_allocation,
            prefix_cache,
            eviction,
            preemption,
            slo: self.slo,
            tenants: tenants.clone(),
        }
    }
}

/// A request that has no name yet; the engine gives it one.
#[derive(Clone, Debug, PartialEq)]
pub struct NewRequest {
    /// The prompt; never empty.
    pub prompt: Vec<TokenId>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Which of `n` choices this is; part of the sampling key.
    pub choice: u32,
    /// Most tokens to generate; at least one. The end of the context may come first.
    pub max_tokens: usize,
    /// Tokens that end the answer; the token itself is part of the output.
    pub stop_tokens: Vec<TokenId>,
    /// What it asks of the scheduler.
    pub service: ServiceParams,
    /// A guess at the answer, for drafts; it changes how fast the answer comes and nothing else.
    pub prediction: Vec<TokenId>,
    /// What the answer must look like.
    pub constraint: Option<Constraint>,
}

impl NewRequest {
    /// The same with a name.
    pub(crate) fn named(self, id: RequestId) -> Request {
        let Self {
            prompt,
            sampling,
            choice,
            max_tokens,
            stop_tokens,
            service,
            prediction,
            constraint,
        } = self;
        Request {
            id,
            prompt,
            sampling,
            choice,
            max_tokens,
            stop_tokens,
            service,
            prediction,
            constraint,
        }
    }
}
