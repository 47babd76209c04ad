//! OpenAI-compatible HTTP over the library face.
//!
//! ```text
//!   body --types--> fields --validate--> request --convert--> Llm
//!   events --convert--> one JSON answer, or server-sent events
//! ```
//!
//! - Every error, whatever its cause, is `{"error": {"message", "type", "param", "code"}}`.
//! - A server has one model or several ([`Catalog`]), each for text or for vectors of texts. Each
//!   refuses requests for the other. A request pins the version of its model, so models come and go
//!   while requests run.
//! - A parameter that is known but not honoured, or not known at all, is refused by name.
//! - When a client goes away its request is dropped, and the engine frees it within one step.
//! - With API keys ([`Access`]) every request needs a key, and the key decides the tenant; only
//!   `/health` and `/ready` are open.
//! - A server listens on an address, with or without TLS, on a Unix socket, or on both.
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
mod batch;
mod connections;
mod cors;
mod error;
mod files;
#[doc(hidden)]
pub mod fuzzing;
mod gateway;
mod host;
mod intake;
mod limits;
mod listening;
mod live;
mod metrics;
mod models;
mod openapi;
mod otlp;
mod outcome;
mod patience;
mod quiet;
mod request_id;
mod routes;
mod serve;
mod signals;
#[cfg(test)]
mod simulation;
mod state;
mod timeline;
mod tls;
mod wire;

pub use access::{Access, AccessError, ApiKey, Tenant};
pub use batch::{
    BatchRunner, Counts, Done, DoneError, Ended, ResultLine, RunError, RunOptions, Sink,
};
pub use cors::CorsOrigins;
pub use gateway::{
    GatewayConfig, GatewayError, KeysError, UsageFailures, UsageFile, change_keys, read_keys,
};
pub use host::HostName;
pub use listening::{SocketAccess, UnixSocketError};
pub use models::{
    AutoRule, Catalog, Condition, DegradeRule, Loader, ModelSpec, ModelsError, Routing,
    RoutingError, Served, check_names,
};
pub use openapi::openapi;
pub use otlp::{OtlpConfig, OtlpError};
pub use routes::ResponsesConfig;
pub use serve::{Renew, Renewed, ServeConfig, ServeError, Server};
pub use signals::{SignalSender, Signals};
pub use tls::{TlsConfig, TlsError};
