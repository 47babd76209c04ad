//! Batches: files of requests, one per line, answered one by one by the server's own handlers.
//!
//! ```text
//! lines ── LineReader ──> BatchLine ── router ──> response ──> result line
//!            bounded        checks      as over HTTP            in the order in which answers end
//! ```
//!
//! `pelton batch` and `POST /v1/batches` share this runner, and it has no handlers of its own: a line
//! goes through the same router as a request over HTTP, so both get the same answer. A bad line
//! fails alone, with its number. At any time a bounded number of lines is in memory.

mod call;
mod done;
mod line;
mod reader;
mod result;
mod runner;

pub(crate) use call::Caller;
pub use done::{Done, DoneError};
pub(crate) use line::URLS;
pub(crate) use reader::count_lines;
pub use result::ResultLine;
pub use runner::{BatchRunner, Counts, Ended, RunError, RunOptions, Sink};
