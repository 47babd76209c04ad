//! Any bytes are settings of `pelton serve` or API keys, or an error of one line that shows no key.
#![no_main]

/// The program is no library, so these of its modules are modules of this target.
#[path = "../../crates/cli/src"]
#[allow(dead_code, unused_imports, reason = "most of the program is not called here")]
mod program {
    pub(crate) mod args;
    pub(crate) mod config;
    pub(crate) mod failure;
    pub(crate) mod flags;
    pub(crate) mod mode;
    pub(crate) mod model;
    pub(crate) mod progress;
    pub(crate) mod prompt;
    pub(crate) mod sandbox;
    pub(crate) mod units;
}
#[allow(unused_imports, reason = "they call each other by the names of the program")]
use program::{args, config, failure, flags, mode, model, progress, prompt, sandbox, units};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| config::try_bytes(bytes));
