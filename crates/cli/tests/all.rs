//! The tests of the program in one binary: each test binary would compile and link its own copy of the rest.
//!
//! Tests that measure times have binaries of their own (`Cargo.toml`).

#[path = "../../server/tests/harness/certificates.rs"]
mod certificates;
mod common;

mod activation_group;
mod bad_input;
#[cfg(unix)]
mod batch;
mod beam_search;
mod bench_ablate;
mod bench_grammar;
mod bench_kernels;
mod bench_model;
mod bench_offline;
mod bench_reports;
mod bench_serve;
mod bench_served;
mod bench_spec;
mod chat;
mod config;
mod convert;
mod dialects;
mod documents;
mod embed;
mod eval;
#[cfg(unix)]
mod first_contact;
mod forms;
mod fuzz_seeds;
#[cfg(unix)]
mod gateway;
mod golden_models;
mod golden_rankers;
#[cfg(unix)]
mod key;
mod mistakes;
mod models;
mod observing;
#[cfg(target_os = "linux")]
mod one_team;
mod packed_cache;
mod parse_tools;
mod plan;
mod plan_advise;
mod quantize;
mod quantize_at_load;
mod quantize_experts;
mod reference;
mod sampling;
#[cfg(target_os = "linux")]
mod sandbox;
#[cfg(target_os = "linux")]
mod serve_hardening;
mod served;
mod states;
mod story;
#[cfg(target_os = "linux")]
mod system_limits;
mod templates;
mod tls;
mod token_flags;
mod top;
