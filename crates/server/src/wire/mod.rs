//! Readers and writers that all endpoints share.

mod answer;
mod beams;
mod body;
mod cut;
mod events;
mod fields;
mod form;
mod generation;
mod id;
mod ignored;
mod inputs;
pub(crate) mod json;
pub(crate) mod lenient;
mod metadata;
mod parameters;
pub(crate) mod record;
pub(crate) mod routed;
mod sampling;
mod shown;
mod sse;
mod unhonoured;
mod usage;

pub(crate) use answer::{Ask, Head, finish_reason};
pub(crate) use beams::BeamFields;
pub(crate) use body::Body;
pub(crate) use cut::cut;
pub(crate) use events::{stream, write_event, write_line};
pub(crate) use fields::Fields;
pub(crate) use form::{SCHEMA, json as json_form};
pub(crate) use generation::{
    GenerationFields, StreamOptions, generation, n_predict, request_id, stream_options,
};
pub(crate) use id::Id;
pub(crate) use ignored::Ignored;
pub(crate) use inputs::{Forms, inputs, token_ids};
pub(crate) use metadata::metadata;
pub(crate) use parameters::Parameters;
pub(crate) use routed::Routed;
pub(crate) use shown::{Ids, Now, PromptLogprobs, Shown, StopReason, TimingsBody, obfuscation};
pub(crate) use sse::{Chunks, Source, StreamState, respond, sse};
pub(crate) use unhonoured::{Accept, THOUGHTS, check_unhonoured};
pub(crate) use usage::UsageBody;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Names this server in answers.
pub(crate) const FINGERPRINT: &str = concat!("pelton-", env!("CARGO_PKG_VERSION"));

/// Seconds since 1970, with their fraction.
pub(crate) fn unix_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

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
