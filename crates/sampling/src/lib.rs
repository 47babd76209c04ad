//! Logits to tokens: processors, truncation, the draw, log probabilities.
//!
//! # The chapter
//!
//! ```text
//! raw logits ──▶ log probabilities (if asked for)
//!     │
//!     ▼  processors: logit bias; repetition, presence and frequency penalties; DRY; the masks of
//!     │  suppressed and allowed tokens, bad words and `min_tokens`; then any other; then the mask of the rule
//! processed logits
//!     │  temperature == 0 ──▶ the largest, the lowest id among equals
//!     ▼  weights exp((l - max) / temperature); top-k, top-p, min-p keep some of them,
//!     │  or the stages that a request asks for, in its order: see `stages`
//! one draw, from the generator at (seed, choice, position); or drafts are verified, see [`verify`]
//! ```
//!
//! **Architecture invariant:** the same logits and the same key give the same token, bit for bit,
//! on every machine. Sums have a fixed order, the exponential is our own and made of plain
//! multiplications and additions, ties go to the lower id, and the generator has no state: it is a
//! function of (seed, choice, position), so it does not matter which requests share the batch or
//! how often a request was preempted.
//!
//! **Architecture invariant:** no logits can make it panic. NaN counts as minus infinity, plus
//! infinity as the largest finite number, and when nothing is possible (every logit is minus
//! infinity) the answer is token 0.
//!
//! **Architecture invariant:** nothing is allocated per token but reported log probabilities; a
//! [`Sampler`] keeps its scratch, as large as the vocabulary can make it, and requests keep only
//! what they have seen.
//!
//! Papers: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011; Holtzman et
//! al., ICLR 2020 (top-p); Nguyen et al., 2024 (min-p); Keskar et al., 2019 (repetition penalty).
//! Each of the other files names its own.
#![forbid(unsafe_code)]

mod allowed;
mod bad_words;
mod candidates;
mod distribution;
mod dry;
mod likely;
mod logprobs;
mod masked;
mod math;
mod min_tokens;
mod penalties;
mod philox;
mod processors;
mod sampler;
mod select;
mod stages;
mod state;
mod suppressed;
pub mod verify;

pub use allowed::Allowed;
pub use bad_words::BadWords;
pub use candidates::Candidates;
pub use distribution::{Distribution, KeptDistribution};
pub use dry::DryPenalty;
pub use likely::Likely;
pub use logprobs::{LogprobsMode, ScoredToken, Scorer, TokenLogprobs};
pub use masked::Masked;
pub use min_tokens::MinTokens;
pub use penalties::Penalties;
pub use philox::{Philox, Stream, philox4x32_10};
pub use processors::{LogitBias, LogitsProcessor, RowContext};
pub use sampler::{Sampled, Sampler};
pub use state::SamplerState;
pub use suppressed::Suppressed;
