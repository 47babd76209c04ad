//! OpenTelemetry traces: one span for each request that asks a model, sent to a collector over
//! OTLP/HTTP in JSON.
//!
//! ```text
//!   request ends ──▶ Span ──▶ queue of 2048 ──▶ thread: batches of 512, or each 5 s ──▶ collector
//!                               └─ full: the span is dropped and counted
//! ```
//!
//! A span has the attributes of the semantic conventions for generative AI (`gen_ai.*`). Its parent
//! comes from the request's `traceparent` header (W3C Trace Context); a parent that is not sampled
//! makes no span. A request that generates no text, because it is for vectors or was refused, has a
//! span as well ([`open`]). Texts of prompts and answers never leave the process;
//! stop strings do, as the conventions have them.

mod config;
mod exporter;
mod open;
mod parent;
mod span;
mod stated;

pub use self::config::{OtlpConfig, OtlpError};
pub(crate) use self::exporter::{Counts, Exporter};
pub(crate) use self::open::layer;
pub(crate) use self::parent::Traced;
pub(crate) use self::span::Span;
pub(crate) use self::stated::{Parameters, Stated};
