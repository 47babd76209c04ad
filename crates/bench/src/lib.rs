//! Measurements of the real thing on this machine.
//!
//! ```text
//! kernels   one operation at a time           ─▶ share of the machine's ceilings
//! model     prefill, decode, verification     ─▶ tokens per second, shares of the ceilings
//! spec      drafting beside plain decoding    ─▶ speed-up per batch size, advice
//! quality   a text under a model              ─▶ perplexity, distance from a reference
//!           two models, questions, needles    ─▶ both side by side; right answers
//! grammar   schemas on a vocabulary           ─▶ compile and mask times, schemas enforced
//! load      a workload against the engine     ─▶ the ledger that the simulator fills too
//! serve     a workload against any server     ─▶ the same, as its clients see it
//! offline   batches of equal requests         ─▶ prompts and generation apart, with their tails
//! sweep     a workload at several loads       ─▶ the knee of the curve, and its cause
//! ablate    techniques, alone and stacked     ─▶ the gain of each
//! ```
//!
//! [`record`] is the one format of all reports, [`compare`] tells two of them apart, and [`page`]
//! draws them. Each module takes a small configuration and something that is loaded already, and
//! returns a report that renders itself as a table or serializes as JSON. Flags, progress bars and
//! Ctrl-C belong to the caller, which follows a measurement through a [`Watch`].
//!
//! **Architecture invariant:** nothing here prints, reads flags or listens to signals.
#![forbid(unsafe_code)]

pub mod ablate;
mod ceilings;
pub mod compare;
mod error;
pub mod estimate;
pub mod grammar;
pub mod histogram;
pub mod kernels;
pub mod load;
pub mod model;
pub mod offline;
mod pace;
pub mod page;
pub mod profile;
pub mod quality;
pub mod record;
mod samples;
pub mod serve;
mod sessions;
mod shared;
pub mod spec;
pub mod sweep;
mod table;
mod tokens;
mod tuned;
mod watch;

pub use error::{BenchError, Result};
pub use pace::{Pace, on_generator};
pub use table::bytes;
pub use watch::{Progress, Watch};
