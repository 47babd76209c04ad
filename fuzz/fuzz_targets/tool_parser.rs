//! `cases/tool_parser.rs`, run by libFuzzer.
#![no_main]

#[path = "../cases/tool_parser.rs"]
mod case;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| case::run(bytes));
