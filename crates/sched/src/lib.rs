//! Which tokens run next and where their KV lives: requests, blocks, prefix cache, scheduler.
//!
//! # The chapter
//!
//! The scheduler is a state machine without I/O. The engine feeds it requests, asks for a plan,
//! lets an executor carry the plan out, and reports the outcome:
//!
//! ```text
//! add(request) ──▶ Waiting ──admit──▶ Running ──finish──▶ Completed
//!                                      │   ▲ ▲
//!                              preempt ▼   │ └── KV is there ── Loading
//!                                    Preempted ── admit ─────────┘   where KV comes from the host
//!
//! loop { schedule(now, signals) ─▶ plan;  execute(plan) ─▶ step;  update(step) ─▶ updates }
//! ```
//!
//! **Tokens catch up; there are no phases.** Each running sequence has `n_computed` tokens whose KV
//! exists, chasing the `n_tokens` it holds (prompt, output and, for one step, drafts alike). A step
//! hands out one budget: first to sequences that already generate (decode rows), then to sequences
//! that still catch up (prefill chunks), then to newly admitted ones. A chunk that reaches the last
//! known token *samples*, which makes the sequence longer, and the chase goes on.
//!
//! ```text
//! tokens   [ p p p p p p p p | o o o | d d ]   p prompt, o output, d drafts
//!            └─ n_computed ─┘                  KV exists for these
//!                            └─ scheduled ─┘   this step: its last rows sample
//! blocks   [ 7       | 2       | 9    ]        block table, block_size tokens each
//! ```
//!
//! **The budget** is counted in tokens and in time: beside requests that generate, chunks are as
//! large as the measured prices allow ([`StepCost`]) for the longest step ([`Choices::max_step`])
//! and for the targets per token of these requests. A [`Policy`] ranks each request at its arrival.
//! The [`Outlook`] tells whether a request should be taken at all.
//!
//! **Memory.** A sequence is admitted only when blocks for *all* its known tokens can be had, with
//! a watermark to spare, and it takes them at once: a prompt never runs dry half way. It shares the
//! cached part of its prefix, and waits for a part that another sequence is computing right now.
//! Only decode rows ask for more blocks. When none are left, the request that stands last gives all
//! its blocks back: they stay in the cache, where its tail is evicted first and only as far as
//! memory is needed, or are copied to the host, whichever is cheaper. The request that stands first
//! never gives way, so it always finishes; requests that waited too long have a part of the service
//! to themselves; so every request finishes.
//!
//! **KV moves while other requests run.** A copy to the host or back is a [`Transfer`] that a plan
//! starts and a later outcome reports as over. Until then its blocks belong to it: a sequence whose
//! KV comes in is `Loading` and gets no tokens, and blocks whose KV goes out are not handed out.
//!
//! **Recurrent layers** keep a state of fixed size instead of KV. A sequence that holds blocks has a
//! *lane* for it, and a request goes on from a cached prefix only where a *snapshot* of the state was
//! kept, at a border of chunks ([`StateConfig`]). The prefix cache keeps snapshots at the last border of
//! each prompt, where prompts part, and where a sequence ended.
//!
//! **Layers with an attention window** free what lies behind it: a sequence has a second table of the
//! blocks of its last tokens, from the same pool ([`KvWindows`]). The prefix cache keeps such blocks
//! beside those of all tokens, and gives up first what sequences passed.
//!
//! Plan, step and updates belong to the caller, who passes them in again each time; a sequence gets
//! its token list and block table at admission, as long as they can become. So a step of sequences
//! that go on decoding allocates nothing, not even when one begins a new block.
//!
//! | part | its knowledge |
//! |---|---|
//! | [`Scheduler`] | the states, and the plan of a step |
//! | [`Policy`] | the order of requests |
//! | queue, tenants | the waiting requests, and the service that each tenant had |
//! | guard | the share of service for requests that waited too long |
//! | kv, transfers | pool, tables, prefix cache, swap store, KV under way |
//! | [`RadixTree`] | the blocks of each cached prefix, and the states that were kept along it |
//! | windows | blocks of the last tokens, for layers with an attention window |
//! | states | lanes, snapshots and borders of models with recurrent layers |
//! | [`StepCost`], [`Outlook`] | the price of a step, and the prospects of a new request |
//! | [`Prefixes`] | how much of a new request is cached, as a guess |
//!
//! **Architecture invariant:** no I/O, no clock, no float, no tensor, no thread, no error type.
//! Exhaustion is an answer, a broken invariant is a panic. The same calls give the same plans.
//!
//! Papers: Yu et al., "Orca", OSDI 2022 (continuous batching); Kwon et al., "PagedAttention", SOSP
//! 2023 (blocks, preemption); Agrawal et al., "Sarathi-Serve", OSDI 2024 (chunked prefill beside
//! decode rows); Zheng et al., "SGLang", NeurIPS 2024 (radix tree of prefixes).
#![forbid(unsafe_code)]

mod block_pool;
mod block_table;
mod budget;
mod choices;
mod config;
mod cost;
mod drafts;
mod guard;
mod kv;
mod outlook;
mod pace;
mod plan;
mod policy;
mod prefixes;
mod queue;
mod radix;
mod scheduler;
mod sequence;
mod states;
mod tenants;
mod transfers;
mod windows;

pub use block_pool::{BlockId, BlockPool};
pub use block_table::BlockTable;
pub use choices::{
    Batching, ChoiceError, Choices, KvAllocation, PreemptionMode, PriorityOrder, TenantConfig,
};
pub use config::{Refusal, SchedulerConfig, Signals, Tick};
pub use cost::{StepCost, StepLoad};
pub use drafts::DraftTree;
pub use outlook::{Outlook, PromptSize};
pub use pelton_base::{KvWindows, Namespace};
pub use plan::{
    Direction, HostBlockId, LaneShare, Rows, ScheduledSequence, SchedulerOutput, SequenceUpdate,
    StepOutput, StepUpdates, Transfer, TransferId,
};
pub use policy::{Arrival, Policy, PolicyKind};
pub use prefixes::{PrefixMarks, Prefixes};
pub use radix::{
    Eviction, PrefixLock, RadixConfig, RadixMatch, RadixStats, RadixTree, RecomputeCost,
};
pub use scheduler::{Generating, Scheduler, SchedulerStats};
pub use states::{LaneId, SnapshotId, StateConfig, StateCopy};
