//! Any bytes are a body of `POST /v1/messages` that holds its limits, or a refusal that a client can read;
//! never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| pelton_server::fuzzing::messages(body));
