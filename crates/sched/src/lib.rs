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
//!                              preempt ▼   │ admit again, from token 0
//!                                    Preempted
//!
//! loop { schedule(now, signals) ─▶ plan;  execute(plan) ─▶ step;  update(step) ─▶ updates }
//! ```
//!
//! **Tokens catch up; there are no phases.** Each running sequence has `n_computed` tokens whose
//! KV exists, chasing the `n_tokens` it holds (prompt and output alike). A step hands out one
//! budget of tokens: first to sequences that already generate (decode rows), then to those still
//! catching up (prefill chunks), then to newly admitted ones. A chunk that reaches the last known
//! token *samples*, which makes the sequence one token longer, and the chase goes on.
//!
//! ```text
//! tokens   [ p p p p p p p p | o o o ]      p prompt, o output
//!            └─ n_computed ─┘               KV exists for these
//!                            └ scheduled ┘  this step: its last row samples
//! blocks   [ 7       | 2       | 9    ]     block table, block_size tokens each
//! ```
//!
//! **Memory.** A sequence is admitted only when blocks for *all* its known tokens are free, with a
//! watermark to spare, and it takes them at once: a prompt never runs dry half way. Only decode
//! rows ask for more. When none are left, the latest arrival gives all its blocks back and is
//! computed anew later (recompute preemption); the oldest never does, so it always finishes, and
//! by induction so does everyone.
//!
//! Plan, step and updates belong to the caller, who passes them in again each time; a sequence gets
//! its token list and block table at admission, as long as they can become. So a step of sequences
//! that go on decoding allocates nothing, on a new block neither.
//!
//! **Architecture invariant:** no I/O, no clock, no float, no tensor, no thread, no error type.
//! Exhaustion is an answer, a broken invariant is a panic. The same calls give the same plans.
//!
//! **Architecture invariant:** arrival order is kept by every queue, and across them: everything
//! running arrived before everything preempted, which arrived before everything waiting.
//!
//! Papers: Yu et al., "Orca", OSDI 2022 (continuous batching); Kwon et al., "PagedAttention",
//! SOSP 2023 (blocks, recompute preemption); Agrawal et al., "Sarathi-Serve", OSDI 2024 (chunked
//! prefill beside decode rows).
#![forbid(unsafe_code)]

mod block_pool;
mod block_table;
mod config;
mod plan;
mod prefix_cache;
mod radix;
mod scheduler;
mod sequence;

pub use block_pool::{BlockId, BlockPool};
pub use block_table::BlockTable;
pub use config::{Refusal, SchedulerConfig, Signals, Tick};
pub use plan::{ScheduledSequence, SchedulerOutput, SequenceUpdate, StepOutput, StepUpdates};
pub use prefix_cache::{Inserted, Namespace, NoCache, PrefixCache, PrefixHandle, PrefixMatch};
pub use radix::{
    Eviction, PrefixLock, RadixConfig, RadixMatch, RadixStats, RadixTree, RecomputeCost,
};
pub use scheduler::Scheduler;
