//! `cases/grammar.rs`, run by libFuzzer.
#![no_main]

#[path = "../cases/grammar.rs"]
mod case;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| case::run(bytes));
