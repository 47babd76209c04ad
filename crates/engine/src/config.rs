//! What an engine is told at the start, and what it is asked.

use crate::KvCapacity;
use pelton_base::{SamplingParams, ServiceParams, TokenId, limits};
use pelton_sched::SchedulerConfig;

/// The limits of one engine. The memory for KV is the executor's to know.
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
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            max_batch_tokens: 512,
            max_chunk_tokens: 512,
            max_running_requests: 64,
            max_waiting_requests: limits::MAILBOX_REQUESTS,
            max_context_tokens: limits::MODEL_CONTEXT,
        }
    }
}

impl EngineConfig {
    pub(crate) fn scheduler(&self, kv: KvCapacity, max_context: usize) -> SchedulerConfig {
        SchedulerConfig {
            max_batch_tokens: self.max_batch_tokens,
            max_running: self.max_running_requests,
            max_context: self.max_context_tokens.min(max_context),
            max_chunk_tokens: self.max_chunk_tokens,
            ..SchedulerConfig::new(kv.n_blocks, kv.block_size)
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
}
