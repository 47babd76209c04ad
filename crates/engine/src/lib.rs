//! The loop: one thread that schedules, executes and hands out tokens; and the handle to it.
//!
//! # The chapter
//!
//! ```text
//!   any thread                      engine thread                        any thread
//!   EngineHandle::submit ─▶ mailbox ─▶ drain                              TokenStream::recv
//!                            (bounded)  Scheduler::schedule ─▶ plan            ▲
//!                                       Executor::launch, collect ─▶ step      │ one channel
//!                                       Scheduler::update   ─▶ updates ────────┘ per request
//! ```
//!
//! **Architecture invariant:** the engine thread runs at its own pace. It drains the mailbox
//! between steps and parks when there is nothing to do; no thread calls into it, and it waits for
//! no client. A stream that is not read costs memory (at most `max_tokens` small events), never
//! time.
//!
//! **Architecture invariant:** one request's failure never stops the loop or touches its
//! neighbours. A request that the executor fails on ends with `FinishReason::Error`; when a whole
//! step fails, exactly the requests of that step end so, and the loop goes on. A panic in the code
//! of a request (its rule, a logits processor) ends that request alone, and a proposer that panics
//! is no longer called ([`guard`]).
//!
//! **A panic in the model or in the engine itself** ends every request that the engine has with
//! `Error`. The first time the loop goes on with a new scheduler and an executor that forgets
//! everything ([`Executor::reset`]). The second time the engine has failed: `submit` answers
//! [`SubmitError::Failed`] and [`EngineHandle::failed`] wakes up, so that a server can say so and end.
//!
//! **Dropping a [`TokenStream`] aborts its request** before the next step is planned; its blocks
//! are free from then on.
//!
//! **The loop measures itself**: the price of steps ([`CostFit`]) and the latencies ([`Charts`]).
//! The prices go to the scheduler with the next step, together with the limits that the
//! [`Controller`] moves to keep the targets; all of it stands in [`EngineMetrics`]. The three read
//! no clock and take times as nanoseconds, so a simulator can drive them.
//!
//! **A request is judged where it is submitted**, on the caller's thread, by the outlook that the
//! engine left at its last step: one that cannot be served in time is refused at once, with the
//! time after which it may be, and never becomes load.
//!
//! **Speculative decoding** ([`spec`]) adds drafts to the requests that generate before a step is
//! planned. The executor verifies them, so a step can bring several tokens to one request
//! ([`StepOutput::sampled`](pelton_sched::StepOutput::sampled)).
//!
//! **Beam search** ([`beams`]) is a few requests whose tokens the loop chooses itself, from the
//! candidates that each of them sees.
//!
//! **A step that only decodes allocates nothing** from `schedule` to `update`: plan, outcome and
//! updates are refilled, and all memory that a request can come to need (token list, block table,
//! tokens seen by its penalties) is reserved when it arrives or is admitted. `tests/allocations.rs`
//! counts. The reserve takes 4 bytes for each of `max_tokens`, 8 more with penalties, and none of
//! it is touched before it is used. Outside of the claim are two things that become the client's:
//! the event with its token (a small vector; the channel takes memory for 32 events at a time when
//! the client reads slowly), and log probabilities where asked for.
#![forbid(unsafe_code)]

pub mod beams;
mod capacity;
mod charts;
mod clock;
mod config;
mod controller;
mod cost;
mod engine;
mod error;
mod executor;
mod feedback;
mod guard;
mod handle;
mod mailbox;
mod metrics;
mod model_executor;
mod progress;
mod sources;
pub mod spec;
mod step_tokens;
mod stream;
mod trace;

pub use beams::{Beam, BeamEvent, BeamParams, BeamStream, EarlyStopping};
pub use capacity::Mix;
pub use charts::{Chart, Charts, ChartsSnapshot, Histogram, Latencies, Quantiles};
pub use config::EngineConfig;
pub use controller::{Controller, ControllerConfig, Decision, Limits, Reason};
pub use cost::CostFit;
pub use engine::{Engine, ManualEngine};
pub use error::{ExecutorError, SubmitError};
pub use executor::{Drafting, Execution, Executor, Extras, KvCapacity};
pub use guard::{Fault, Panicked, guard};
pub use handle::EngineHandle;
pub use metrics::EngineMetrics;
pub use model_executor::{KvMemory, ModelExecutor, ModelExecutorConfig, StateRoom};
/// Part of the engine's interface: requests bring processors of their own.
pub use pelton_sampling::{LogitsProcessor, LogprobsMode, RowContext, ScoredToken};
pub use sources::Sources;
pub use spec::{SpecConfig, SpecMethod, SpecStats};
pub use step_tokens::StepTokens;
pub use stream::{SampledToken, TokenEvent, TokenStream};
pub use trace::{Mark, MarkKind, Trace};
