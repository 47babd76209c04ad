//! Which tokens run next and where their KV lives: requests, blocks, prefix cache, scheduler.
//!
//! # The chapter
//!
//! The scheduler is a state machine without I/O. The engine feeds it requests, asks for a plan,
//! lets an executor carry the plan out, and reports what came of it:
//!
//! ```text
//! add(request) ──▶ Waiting ──admit──▶ Running ──finish──▶ Completed
//!                                      │   ▲
//!                              preempt ▼   │ admit again, from what is cached or swapped out
//!                                    Preempted
//!
//! loop { schedule(now, signals) ─▶ plan;  execute(plan) ─▶ step;  update(step) ─▶ updates }
//! ```
//!
//! **Tokens catch up; there are no phases.** Each running sequence has `n_computed` tokens whose
//! KV exists, chasing the `n_tokens` it holds (prompt, output and, for one step, drafts alike). A
//! step hands out one budget: first to sequences that already generate (decode rows), then to those
//! still catching up (prefill chunks), then to newly admitted ones. A chunk that reaches the last
//! known token *samples*, which makes the sequence longer, and the chase goes on.
//!
//! ```text
//! tokens   [ p p p p p p p p | o o o | d d ]   p prompt, o output, d drafts
//!            └─ n_computed ─┘                  KV exists for these
//!                            └─ scheduled ─┘   this step: its last rows sample
//! blocks   [ 7       | 2       | 9    ]        block table, block_size tokens each
//! ```
//!
//! **The budget** is counted in tokens, and in time: where somebody who generates has a target for
//! the time per token, the chunks beside are as large as the measured prices allow
//! ([`StepCost`]). **Who goes first** is a [`Policy`]'s to say, at the arrival; whether one should be
//! taken at all, the [`Outlook`]'s.
//!
//! **Memory.** A sequence is admitted only when blocks for *all* its known tokens can be had, with a
//! watermark to spare, and it takes them at once: a prompt never runs dry half way. What is cached of
//! its prefix it shares; what another is computing right now it waits for. Only decode rows ask for
//! more. When none are left, whoever stands last gives all its blocks back: they stay in the cache,
//! where their tail is forgotten first and only as far as it is needed, or are copied to the host,
//! whichever is cheaper. The first in standing never gives way, so it always finishes; whoever waited
//! too long becomes first; so everyone finishes.
//!
//! Plan, step and updates belong to the caller, who passes them in again each time; a sequence gets
//! its token list and block table at admission, as long as they can become. So a step of sequences
//! that go on decoding allocates nothing, on a new block neither.
//!
//! | part | what it knows |
//! |---|---|
//! | [`Scheduler`] | the states, and the plan of a step |
//! | [`Policy`] | who goes first |
//! | queue, tenants | who waits, and what each tenant was served |
//! | kv | pool, tables, prefix cache, swap store |
//! | [`RadixTree`] | which blocks hold which prefix |
//! | [`StepCost`], [`Outlook`] | what things cost, and what newcomers can expect |
//!
//! **Architecture invariant:** no I/O, no clock, no float, no tensor, no thread, no error type.
//! Exhaustion is an answer, a broken invariant is a panic. The same calls give the same plans.
//!
//! Papers: Yu et al., "Orca", OSDI 2022 (continuous batching); Kwon et al., "PagedAttention",
//! SOSP 2023 (blocks, preemption); Agrawal et al., "Sarathi-Serve", OSDI 2024 (chunked prefill beside
//! decode rows); Zheng et al., "SGLang", NeurIPS 2024 (radix tree of prefixes).
#![forbid(unsafe_code)]

mod block_pool;
mod block_table;
mod budget;
mod choices;
mod config;
mod cost;
mod drafts;
mod kv;
mod outlook;
mod pace;
mod plan;
mod policy;
mod queue;
mod radix;
mod scheduler;
mod sequence;
mod tenants;

pub use block_pool::{BlockId, BlockPool};
pub use block_table::BlockTable;
pub use choices::{
    Batching, ChoiceError, Choices, KvAllocation, PreemptionMode, PriorityOrder, TenantConfig,
};
pub use config::{Refusal, SchedulerConfig, Signals, Tick};
pub use cost::{StepCost, StepLoad};
pub use drafts::DraftTree;
pub use outlook::Outlook;
pub use pelton_base::Namespace;
pub use plan::{
    HostBlockId, Rows, ScheduledSequence, SchedulerOutput, SequenceUpdate, StepOutput, StepUpdates,
};
pub use policy::{Arrival, Policy, PolicyKind};
pub use radix::{
    Eviction, PrefixLock, RadixConfig, RadixMatch, RadixStats, RadixTree, RecomputeCost,
};
pub use scheduler::{Generating, Scheduler, SchedulerStats};
