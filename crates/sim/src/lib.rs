//! Hours of service in moments: workloads, a simulator, and one report for it and the real engine.
//!
//! # The chapter
//!
//! ```text
//!  trace  (file, or generator + seed)      arrivals, lengths, shared prefixes, tenants
//!    │
//!    ├─▶ simulate   real scheduler, fake executor, virtual clock: a million requests in a minute
//!    └─▶ engine     everything real (driven by the benchmarks), a few hundred requests
//!           │
//!           ▼
//!  ledger: one record per request  ─▶  report: percentiles, goodput, shares; as table and as JSON
//! ```
//!
//! The simulator is only as true as its [`Prices`]. Its use is to compare policies on the same
//! arrivals, over times and loads that are too long to wait for. A figure of the report is counted
//! alike for the simulator and the engine.
//!
//! **Architecture invariant:** nothing here reads the clock, and nothing computes with a model. The
//! same trace, options and prices give the same report on every run.
#![forbid(unsafe_code)]

mod live;
mod prices;
mod random;
pub mod report;
mod run;
mod simulate;
pub mod trace;

pub use prices::{PriceError, Prices};
pub use random::Random;
pub use simulate::{SimConfig, SimError, SimProgress, simulate};
