//! `cases/tokenizer_folder.rs`, run by libFuzzer.
#![no_main]

#[path = "../cases/tokenizer_folder.rs"]
mod case;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| case::run(bytes));
