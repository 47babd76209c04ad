//! The shared nouns: token, request, finish reason, and every limit with its unit.
//!
//! This crate holds words, not behaviour: nothing here computes, but for the sizes of [`KvWindows`], which
//! calculators and allocators share. Every floor above may use it.
#![forbid(unsafe_code)]

mod constraint;
mod layer;
pub mod limits;
mod request;
mod sampling;
mod service;
mod shape;
mod windows;

pub use constraint::{Constraint, Rule, RuleState, TokenSet};
pub use layer::{Act, ExpertGroups, GroupRank, Router, RouterScore};
pub use request::{Ask, FinishReason, Request, RequestId, TokenId, Usage};
pub use sampling::{
    Dry, Dynatemp, Mirostat, ParamError, SamplerStage, SamplingParams, SuppressedTokens, Xtc,
};
pub use service::{Drafting, Namespace, ServiceParams, Slo, Source, TenantId};
pub use shape::{Shape, Tag};
pub use windows::{KvWindows, Reach};
