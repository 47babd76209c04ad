//! The choices and limits of an engine.

use crate::{ControllerConfig, KvCapacity, SpecConfig};
use pelton_base::limits;
use pelton_sched::{Choices, SchedulerConfig, StepCost};

/// The limits and choices of one engine. The executor decides how much KV there is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct EngineConfig {
    /// How requests share the machine. The controller aims at `slo` of these choices.
    pub choices: Choices,
    /// Most requests waiting their turn; a submission beyond it is refused.
    pub max_waiting_requests: usize,
    /// Most tokens of one request, prompt and output together; at least two. The model's context
    /// bounds it too.
    pub max_context_tokens: usize,
    /// How far and how often the controller moves the limits of a step.
    pub controller: ControllerConfig,
    /// Prices of a step, where they were measured before; the engine goes on measuring.
    pub cost: Option<StepCost>,
    /// Whether and how tokens are drafted.
    pub spec: SpecConfig,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            choices: Choices::default(),
            max_waiting_requests: limits::MAILBOX_REQUESTS,
            max_context_tokens: limits::MODEL_CONTEXT,
            controller: ControllerConfig::default(),
            cost: None,
            spec: SpecConfig::default(),
        }
    }
}

impl EngineConfig {
    /// The configuration of a scheduler over this KV, for a model of `max_context` tokens.
    pub(crate) fn scheduler(&self, kv: KvCapacity, max_context: usize) -> SchedulerConfig {
        SchedulerConfig {
            n_blocks: kv.n_blocks,
            n_host_blocks: kv.n_host_blocks,
            block_size: kv.block_size,
            max_context: self.max_context_tokens.min(max_context),
            states: kv.states,
            windows: kv.windows,
            choices: self.choices.clone(),
        }
    }
}
