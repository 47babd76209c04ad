//! How requests are served over hours: workloads, a simulator, and one report for it and reality.
//!
//! # The chapter
//!
//! ```text
//!  trace  (file, or generator + seed)          who asks when, how much, sharing what with whom
//!    │
//!    ├─▶ sim    real scheduler, fake executor, virtual clock: a million requests in a minute
//!    └─▶ engine real everything (driven by whoever has one), a few hundred requests
//!           │
//!           ▼
//!  ledger: one record per request  ─▶  report: percentiles, goodput, shares; as table and as JSON
//! ```
//!
//! The simulator is only as true as its prices ([`sim::Prices`]); what it is for is comparing
//! policies on the same arrivals, over lengths of time and loads that nobody waits for in reality.
//! Whatever the report calls by one name is counted alike on both sides.
//!
//! **Architecture invariant:** nothing here reads the clock, and nothing computes with a model. The
//! same trace, options and prices give the same report on every run.
#![forbid(unsafe_code)]

mod random;
pub mod report;
pub mod sim;
pub mod trace;

pub use random::Random;
