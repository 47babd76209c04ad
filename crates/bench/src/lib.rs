//! Measurements of the real thing on this machine.
//!
//! ```text
//! kernels   one operation at a time           ─▶ share of the machine's ceilings
//! model     prefill, decode, verification     ─▶ tokens per second, shares of the ceilings
//! spec      drafting beside plain decoding    ─▶ speed-up per batch size, advice
//! quality   a text under a model                ─▶ perplexity, distance from a reference
//! grammar   schemas on a vocabulary           ─▶ compile and mask times, schemas enforced
//! load      a workload against the engine     ─▶ the ledger that the simulator fills too
//! serve     a workload against any server     ─▶ the same, as its clients see it
//! ```
//!
//! Each module takes a small configuration and something that is loaded already, and returns a
//! report that renders itself as a table or serializes as JSON. Flags, progress bars and Ctrl-C
//! belong to the caller, which follows a measurement through a [`Watch`].
//!
//! **Architecture invariant:** nothing here prints, reads flags or listens to signals.
#![forbid(unsafe_code)]

mod ceilings;
mod error;
pub mod grammar;
pub mod kernels;
pub mod load;
pub mod model;
mod pace;
pub mod quality;
mod samples;
pub mod serve;
pub mod spec;
mod table;
mod tuned;
mod watch;

pub use error::{BenchError, Result};
pub use pace::Pace;
pub use table::bytes;
pub use watch::{Progress, Watch};
