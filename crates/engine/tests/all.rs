//! The tests of the engine in one binary: each test binary would compile and link all of it again.
//!
//! `allocations` counts what its process allocates, and the laws are a chapter of their own.

mod fake;

mod beams;
mod chunks;
mod distribution;
mod drafting;
mod engine;
mod forced;
mod long;
mod min_tokens;
mod moves;
mod panics;
