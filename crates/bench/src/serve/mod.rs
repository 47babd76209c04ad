//! A workload against any OpenAI-compatible server, reported as its clients see it.
//!
//! ```text
//! trace ─▶ pace ─▶ driver ─▶ client ─▶ POST /v1/completions ─▶ server
//!                    │                        events │
//!        ledger ◀────┴── times of each request ◀─────┘
//! ```
//!
//! All times are the client's: network, queue and server together. With [`Pace::Clock`] a request
//! counts as arrived at the time of the trace, even if the client sends it later because the machine
//! was busy. So a stalled server cannot hide the requests that it delayed (coordinated omission), and
//! the report says how late the client was.
//!
//! Prompts are words, not tokens, because the server's vocabulary is unknown: a prompt of N tokens of
//! the trace is N common English words, each of which most vocabularies know as one token. Lengths in
//! the report are those that the server counts. Prompts that share a prefix in the trace share their
//! first words. Prompts may come from a file instead ([`Texts`]).
//!
//! [`Pace::Clock`]: crate::Pace::Clock

mod address;
mod client;
mod counters;
mod driver;
mod events;
mod follow;
mod probe;
mod prompt;
mod report;
mod requests;
mod texts;
mod tls;
mod vllm;

pub use address::Address;
pub use counters::{Counters, Phase};
pub use driver::{Bench, Config, Endpoint};
pub use report::{Failures, Processor, ServeReport};
pub use requests::{Requests, Steadiness, Steady};
pub use texts::Texts;
pub use vllm::Traffic;
