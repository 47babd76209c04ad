//! Tiny models and helpers for the tests of the other crates; a development dependency only.
#![forbid(unsafe_code)]
