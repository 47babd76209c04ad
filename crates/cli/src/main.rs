//! The `pelton` binary.
#![forbid(unsafe_code)]
fn main() {}
