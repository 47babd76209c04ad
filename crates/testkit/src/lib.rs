//! Tiny models, a plain device and helpers for the tests of the other crates; a development
//! dependency only.
//!
//! A [`TinyModel`] is a few thousand seeded random weights in a real shape. It is written as a
//! Hugging Face folder or as a GGUF file, with a byte-level tokenizer that every crate can read,
//! and says nothing sensible, but always the same. A [`TinyEncoder`] is the same for vectors. A
//! [`PlainDevice`] runs any model in scalar f32, as a second opinion on the kernels. [`statistics`]
//! judges whether samples of a random generator have the distribution that they should have.
//! [`beams`] searches beams by their definition. [`golden`] reads the golden checkpoints of
//! `crates/model/tests`. A [`MemoryFolder`] holds files for a test.
#![forbid(unsafe_code)]

pub mod beams;
mod encoder;
pub mod golden;
mod memory;
mod model;
pub mod plain;
pub mod statistics;
mod tokenizer;

pub use encoder::TinyEncoder;
pub use memory::MemoryFolder;
pub use model::TinyModel;
pub use plain::{PlainDevice, Ranks};
pub use tokenizer::{byte_token, tokenizer_json};
