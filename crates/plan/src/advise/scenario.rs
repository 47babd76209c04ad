//! Goals, and workloads by name.

use serde::{Deserialize, Serialize};

/// The figure that advice improves.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Goal {
    /// Time of a whole answer, at the number of requests of the workload.
    Latency,
    /// Tokens of answers per second.
    Throughput,
    /// Bytes.
    Memory,
    /// Price of a token: at a price per hour, throughput.
    Cost,
}

impl Goal {
    /// All goals.
    pub const ALL: &[Self] = &[Self::Latency, Self::Throughput, Self::Memory, Self::Cost];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Throughput => "throughput",
            Self::Memory => "memory",
            Self::Cost => "cost",
        }
    }
}

/// A workload.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Name on the command line.
    pub name: String,
    /// The same for people.
    pub words: String,
    /// The usual goal.
    pub goal: Goal,
    /// Tokens of a prompt; at least 1.
    pub input_tokens: usize,
    /// Tokens of an answer; at least 1.
    pub output_tokens: usize,
    /// Tokens of the longest request, prompt and answer; absent where all are alike.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub longest_tokens: Option<usize>,
    /// Requests at the same time; at least 1.
    pub batch: usize,
    /// Share of a prompt that an earlier one began with.
    pub shared_prefix: f64,
    /// Guess of how often a drafted token is right.
    pub acceptance: f64,
}

/// The scenarios of `scenarios.json`.
///
/// # Panics
///
/// Never: a test reads the file.
pub fn scenarios() -> Vec<Scenario> {
    serde_json::from_str(include_str!("scenarios.json")).expect("invariant: a test reads it")
}
