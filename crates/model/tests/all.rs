//! The tests of models in one binary: each test binary would compile and link all of it again.
//!
//! `allocations` counts what its process allocates, and `peak_memory` measures its process.

mod common;
mod vectors;

mod activation_groups;
mod checkpoints;
mod encoders;
mod experts;
mod export;
mod footprint;
mod golden;
mod hostile;
mod hostile_checkpoints;
mod hostile_gguf;
mod latent_widths;
mod laws;
mod models_page;
mod packed_cache;
mod plain_device;
mod quantized_families;
mod rounded_states;
mod rounding;
mod seam;
mod seq2seq;
mod shared_pages;
mod streams;
mod taps;
mod vectors_of_decoders;
mod walk;
mod wrapped;
