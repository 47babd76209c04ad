//! The tests of grammars in one binary: each test binary would compile and link all of it again.

mod common;
mod naive;

mod forms;
mod fuzz_seeds;
mod gbnf;
mod masks;
mod memory;
mod refused;
mod suite;
mod tool_calls;
mod walks;
