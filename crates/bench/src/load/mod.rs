//! A workload against the real engine, reported as the simulator reports it.
//!
//! ```text
//! Llm ─▶ engine ◀─ submit ── driver ◀─ trace
//!           └─ events of each request ─▶ records ─▶ report
//! ```
//!
//! The engine notes all moments (begin of the first step, end of the step that brought a token), so
//! a late driver does not make the engine look fast. A request counts as arrived at the time of the
//! trace, even if the driver submits it later because the machine was busy.

mod driver;

pub use driver::{Config, Run, drive};
