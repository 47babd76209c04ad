//! Answers of a given form: JSON schemas, regular expressions and grammars as rules over tokens.
//!
//! ```text
//!   Tokenizer ──► Vocabulary ──► Grammars ──compile(Shape, ends, namespace)──► Constraint
//!                 (per model)    (cache)                                           │ begin, per answer
//!                                                                                  ▼
//!                                                        allow, accept, forced, stuck, fork
//! ```
//!
//! A [`Vocabulary`] is built once per model, takes tenths of a second for 128k tokens and is shared.
//! [`Grammars::compile`] turns a [`Shape`](pelton_base::Shape) into a
//! [`Constraint`](pelton_base::Constraint); it takes milliseconds, so callers run it off the threads
//! that serve, and equal requests of one [`Namespace`](pelton_base::Namespace) share the result.
//!
//! The parsing itself is done by `llguidance`: derivatives of regular expressions as lexer, Earley's
//! algorithm above it, a walk over the tree of the vocabulary for the mask. Everything before that is
//! ours, so that a schema is either enforced as a whole or refused with the path of the part that
//! cannot be.
//!
//! Architecture invariant: nothing here knows of engines, models or requests.
#![forbid(unsafe_code)]

mod bias;
mod book;
mod budget;
mod cache;
mod compose;
mod error;
mod gbnf;
mod grammars;
mod json;
mod limits;
mod parser;
mod plain;
mod regular;
mod rule;
mod state;
mod vocabulary;

pub use error::GrammarError;
pub use grammars::{CacheStats, Grammars, Layout};
pub use limits::Limits;
pub use vocabulary::Vocabulary;
