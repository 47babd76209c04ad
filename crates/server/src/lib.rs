//! OpenAI-compatible HTTP over the library face.
//!
//! ```text
//!   body --types--> fields --validate--> request --convert--> Llm
//!   events --convert--> one JSON answer, or server-sent events
//! ```
//!
//! - Every error, whatever its cause, is `{"error": {"message", "type", "param", "code"}}`.
//! - A server has one model: for text, or for vectors of texts. Each refuses requests for the
//!   other.
//! - A parameter that is known but not honoured, or not known at all, is refused by name.
//! - When a client goes away its request is dropped, and the engine frees it within one step.
//! - With API keys ([`Access`]) every request needs a key, and the key decides the tenant; only
//!   `/health` and `/ready` are open.
//! - Silent or idle connections keep nobody out: the idlest one makes room for a new one.
//! - [`Server`] ends gently: after the first [`Signals`] nothing new is let in (503) and what is
//!   running is finished; a second one, or the time limit, aborts it.
//!
//! **Architecture invariant:** this is the only crate with JSON wire types, and `error` is the only
//! place that chooses a status code.
#![forbid(unsafe_code)]

mod access;
mod access_log;
mod answering;
mod connections;
mod cors;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod host;
mod intake;
mod limits;
mod metrics;
mod patience;
mod request_id;
mod routes;
mod serve;
mod served;
mod signals;
#[cfg(test)]
mod simulation;
mod state;
mod wire;

pub use access::{Access, AccessError, ApiKey, Tenant};
pub use cors::CorsOrigins;
pub use host::HostName;
pub use serve::{ServeConfig, ServeError, Server};
pub use signals::{SignalSender, Signals};
