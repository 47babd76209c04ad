//! The loop: one thread that schedules, executes and hands out tokens; and the handle to it.
//!
//! # The chapter
//!
//! ```text
//!   any thread                      engine thread                        any thread
//!   EngineHandle::submit ─▶ mailbox ─▶ drain                              TokenStream::recv
//!                            (bounded)  Scheduler::schedule ─▶ plan            ▲
//!                                       Executor::execute   ─▶ step            │ one channel
//!                                       Scheduler::update   ─▶ updates ────────┘ per request
//! ```
//!
//! **Architecture invariant:** the engine thread runs at its own pace. It drains the mailbox
//! between steps and parks when there is nothing to do; nobody calls into it and it waits for
//! nobody. A stream that is not read costs memory (at most `max_tokens` small events), never time.
//!
//! **Architecture invariant:** one request's failure never stops the loop or touches its
//! neighbours. What the executor fails on ends with `FinishReason::Error`; when a whole step
//! fails, exactly the requests of that step end so, and the loop goes on. Only a panic ends the
//! loop: then every open stream ends with `Error` and `submit` answers `Stopped`.
//!
//! **Dropping a [`TokenStream`] aborts its request** before the next step is planned; its blocks
//! are free from then on.
//!
//! **The loop measures itself**: what steps cost ([`CostFit`]) and how long things take ([`Charts`]).
//! The prices go to the scheduler with the next step, together with the limits that the
//! [`Controller`] moves to keep the targets; all of it stands in [`EngineMetrics`]. The three know no
//! clock but the nanoseconds they are told, so a simulator can drive them.
//!
//! **A request is judged where it is submitted**, on the caller's thread, by the outlook that the
//! engine left at its last step: one that cannot be served in time is refused at once, with the time
//! after which it may be, and never becomes load.
//!
//! Speculative decoding enters between `execute` and `update`: a proposer drafts, the executor
//! verifies, and a step hands several tokens to one request. The loop and the scheduler already
//! take several ([`StepOutput::sampled`](pelton_sched::StepOutput::sampled)); the trait itself comes
//! with its first implementation.
//!
//! **A step that only decodes allocates nothing** from `schedule` to `update`: plan, outcome and
//! updates are refilled, and whatever a request can come to need (token list, block table, tokens
//! seen by its penalties) is reserved when it arrives or is admitted. `tests/allocations.rs` counts.
//! What is reserved takes 4 bytes for each of `max_tokens`, 8 more with penalties, and none of it is
//! touched before it is used. Outside of the claim are two things that become the client's: the
//! event with its token (a small vector; the channel takes memory for 32 events at a time when the
//! client reads slowly), and log probabilities where asked for.
#![forbid(unsafe_code)]

mod charts;
mod clock;
mod config;
mod controller;
mod cost;
mod engine;
mod error;
mod executor;
mod feedback;
mod handle;
mod mailbox;
mod metrics;
mod model_executor;
pub mod spec;
mod stream;

pub use charts::{Chart, Charts, ChartsSnapshot, Histogram, Latencies, Quantiles};
pub use config::EngineConfig;
pub use controller::{Controller, ControllerConfig, Decision, Limits, Reason};
pub use cost::CostFit;
pub use engine::Engine;
pub use error::{ExecutorError, SubmitError};
pub use executor::{Execution, Executor, KvCapacity};
pub use handle::EngineHandle;
pub use metrics::EngineMetrics;
pub use model_executor::{KvMemory, ModelExecutor, ModelExecutorConfig};
pub use spec::{SpecConfig, SpecMethod, SpecStats};
pub use stream::{SampledToken, TokenEvent, TokenStream};
