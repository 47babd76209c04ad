//! Readers and writers that all endpoints share.

mod answer;
mod beams;
mod body;
mod fields;
mod form;
mod generation;
mod inputs;
pub(crate) mod json;
mod sampling;
mod sse;
mod unhonoured;
mod usage;

pub(crate) use answer::{Ask, Head, finish_reason};
pub(crate) use beams::BeamFields;
pub(crate) use body::Body;
pub(crate) use fields::Fields;
pub(crate) use form::SCHEMA;
pub(crate) use generation::{GenerationFields, StreamOptions, generation, stream_options};
pub(crate) use inputs::{Forms, inputs};
pub(crate) use sse::{Chunks, Source, StreamState, respond, sse};
pub(crate) use unhonoured::{Accept, check_unhonoured};
pub(crate) use usage::UsageBody;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Names this server in answers.
pub(crate) const FINGERPRINT: &str = concat!("pelton-", env!("CARGO_PKG_VERSION"));

/// Seconds since 1970.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// An id that is unique among the answers of this server.
pub(crate) fn fresh_id(prefix: &str) -> String {
    use std::hash::{BuildHasher, RandomState};
    static N_IDS: AtomicU64 = AtomicU64::new(0);
    let n = N_IDS.fetch_add(1, Ordering::Relaxed);
    format!("{prefix}{:016x}{n:08x}", RandomState::new().hash_one(n))
}

/// A token's bytes as text; invalid UTF-8 is replaced.
pub(crate) fn token_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A log probability that JSON can hold: impossible tokens get a very small one.
pub(crate) fn finite(logprob: f32) -> f32 {
    logprob.max(-9999.0)
}
