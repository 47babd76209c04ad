//! `cases/trace.rs`, run by libFuzzer.
#![no_main]

#[path = "../cases/trace.rs"]
mod case;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| case::run(bytes));
