//! `cases/tokenizer_folder.rs`, run by libFuzzer.
#![no_main]

#[path = "../cases/tokenizer_folder.rs"]
mod case;
#[path = "../cases/tokenizer.rs"]
#[allow(dead_code, reason = "only the use of a tokenizer is shared")]
mod tokenizer;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| case::run(bytes));
