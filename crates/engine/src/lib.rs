//! The loop: executor, KV memory, step metrics, EngineHandle.
#![forbid(unsafe_code)]
