//! The one format of the reports of all benchmarks.
//!
//! ```text
//! { "report":   { "format": "pelton-bench", "version": 1, "kind": "offline", "pelton": "0.1.0",
//!                 "command": [...], "at": 1764000000, "interrupted": false, "machine": {...},
//!                 "noise": {...} },
//!   "measures": [ { "name": "...", "unit": "tokens/s", "better": "higher",
//!                   "median": ..., "samples": [one per round] }, ... ],
//!   ... the fields of the kind of benchmark }
//! ```
//!
//! `report` and `measures` are the same for all kinds, and all that a comparison reads. The machine
//! is that of the program that measured, with what `pelton doctor` found out about it; for a server
//! elsewhere it is the machine of the client.

mod machine;
mod measure;
mod noise;
mod read;
mod reads;
mod served;

pub use machine::{Baseline, Machine};
pub use measure::{Better, Measure};
pub use noise::{MOST_OTHERS, MOST_STOLEN, Noise, NoiseWatch, Worker};
pub use read::{ReadError, Recorded};
pub use reads::{BesideBaseline, Reads};
pub use served::{Driven, Simulated};

use serde::{Deserialize, Serialize};

/// Name of the format.
pub const FORMAT: &str = "pelton-bench";
/// Version of the format; a reader refuses every other one.
pub const VERSION: u32 = 1;

/// The report of one kind of benchmark.
pub trait Reported: Serialize {
    /// Name of the command, or the word after `pelton bench` or `pelton eval`.
    const KIND: &'static str;

    /// The figures that can be compared with those of another run.
    fn measures(&self) -> Vec<Measure>;

    /// Whether the run ended before all was measured.
    fn is_interrupted(&self) -> bool;

    /// The threads that computed; `None` where the kind does not say it, as for another program.
    fn threads(&self) -> Option<usize>;

    /// The speed of reads from memory that it measured meanwhile, if it did. Each kind says so
    /// itself, so that none forgets it.
    fn reads(&self) -> Option<Reads>;
}

/// Facts about a run that every report begins with.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Header {
    /// Always [`FORMAT`].
    pub format: String,
    /// Always [`VERSION`].
    pub version: u32,
    /// Name of the command after `pelton bench`.
    pub kind: String,
    /// Version of the program.
    pub pelton: String,
    /// The command line, keys left out.
    pub command: Vec<String>,
    /// End of the run, in seconds since 1970.
    pub at: u64,
    /// Whether the run ended before all was measured.
    pub interrupted: bool,
    /// The machine of the program.
    pub machine: Machine,
    /// Other work on the machine meanwhile; absent where that is not known, and in older reports.
    #[serde(default)]
    pub noise: Option<Noise>,
    /// Reads from memory meanwhile beside those that `pelton doctor` found; absent where one of
    /// them was not measured, and in older reports.
    #[serde(default)]
    pub reads: Option<BesideBaseline>,
}

/// A report with its header, ready to be written.
#[derive(Debug, Serialize)]
pub struct Record<'a, R> {
    report: Header,
    measures: Vec<Measure>,
    #[serde(flatten)]
    body: &'a R,
}

impl<'a, R: Reported> Record<'a, R> {
    /// The record of a run that ended `at`, in seconds since 1970.
    pub fn new(
        body: &'a R,
        (machine, noise): (Machine, Option<Noise>),
        command: Vec<String>,
        at: u64,
    ) -> Self {
        let report = Header {
            format: FORMAT.to_owned(),
            version: VERSION,
            kind: R::KIND.to_owned(),
            pelton: env!("CARGO_PKG_VERSION").to_owned(),
            command: without_keys(command),
            at,
            interrupted: body.is_interrupted(),
            reads: BesideBaseline::of(body.reads(), &machine),
            machine: Machine { threads: body.threads().unwrap_or(machine.threads), ..machine },
            noise,
        };
        Self { report, measures: body.measures(), body }
    }

    /// The facts about the run.
    pub fn header(&self) -> &Header {
        &self.report
    }
}

/// A command line in which API keys are replaced.
fn without_keys(command: Vec<String>) -> Vec<String> {
    let mut is_key = false;
    let hide = |word: String| {
        let hidden = match word.strip_prefix("--key=") {
            Some(_) => "--key=...".to_owned(),
            None if is_key => "...".to_owned(),
            None => word,
        };
        is_key = hidden == "--key";
        hidden
    };
    command.into_iter().map(hide).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_never_reach_a_report() {
        let words = ["pelton", "bench", "--key", "secret", "--key=secret", "-n", "--key", "k"];
        let told = without_keys(words.map(str::to_owned).to_vec());
        let expected = ["pelton", "bench", "--key", "...", "--key=...", "-n", "--key", "..."];
        assert_eq!(told, expected);
    }
}
