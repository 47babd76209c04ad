//! Any bytes are settings of `pelton serve` or API keys, or an error of one line that shows no key.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pelton_cli::try_bytes(bytes));
