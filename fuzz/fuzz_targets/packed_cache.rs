//! `cases/packed_cache.rs`, run by libFuzzer.
#![no_main]

#[path = "../cases/packed_cache.rs"]
mod case;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| case::run(bytes));
