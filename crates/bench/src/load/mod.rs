//! A workload against the real engine, reported as the simulator reports it.
//!
//! ```text
//! model flags ─▶ Llm ─▶ engine ◀─ submit ── driver ◀─ trace
//!                         └─ events of each request ─▶ records ─▶ report
//! ```
//!
//! Moments are those that the engine notes (begin of the first step, end of the step that brought a
//! token), so that a driver that is late does not make the engine look fast. A request arrives when
//! the trace says, also when the driver comes to it later: nothing is left out because the machine
//! was busy.

mod driver;

pub use driver::{Config, Pace, Run, drive};
