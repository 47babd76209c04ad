//! Any bytes are a config that describes a model, or an error of one line; never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Err(err) = pelton_model::parse_config(bytes) {
        let message = err.to_string();
        assert!(!message.contains('\n'), "{message:?}");
    }
});
