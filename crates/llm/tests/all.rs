//! The tests of the library in one binary: each test binary would compile and link all of it again.
//!
//! `one_team` counts the threads of its process and has a binary of its own.

mod common;
mod small_hub;

mod answers;
mod beams;
mod embedder;
mod forms;
mod hub;
mod load;
mod own_code;
mod ranking;
mod speculation;
