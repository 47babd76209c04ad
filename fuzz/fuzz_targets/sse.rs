//! Any events are a stream that a client can read, with the texts of the events; never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: &[u8]| pelton_server::fuzzing::sse(script));
