//! The tests of the server in one binary: each test binary would compile and link all of it again.
//!
//! A test that counts what its process allocates has a binary of its own (`Cargo.toml`).

#[path = "harness/certificates.rs"]
mod certificates;
mod harness;

mod batches;
mod beam_search;
mod cached_prefixes;
mod crowds;
mod embeddings;
mod fields;
mod first_contact;
mod fuzz_seeds;
mod gateway;
mod http;
mod lifecycle;
mod limits;
mod live;
mod messages;
mod models;
mod openapi;
mod packaging;
mod ranking;
mod replays;
mod responses;
mod result_cache;
mod routing;
mod scored_prompts;
mod service;
mod shapes;
mod speculation;
mod timeline;
mod tls;
mod tokens;
mod tools;
mod vllm_metrics;
