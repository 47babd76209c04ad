//! `cases/gguf.rs`, run by libFuzzer.
#![no_main]

#[path = "../cases/gguf.rs"]
mod case;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| case::run(bytes));
