//! Verification of drafts: which to accept, so that the tokens have the target's distribution.
//!
//! # The chapter
//!
//! A draft is a token that was guessed for a position; the target is the distribution that plain
//! decoding would draw from there ([`Sampler::distribution`](crate::Sampler::distribution): after
//! bias, penalties, masks, temperature and cuts). Drafts for one position, the siblings, are judged
//! in order; under the one accepted stand the drafts for the next position: a tree.
//!
//! ```text
//! p = target
//! for each sibling x, drawn from q:
//!     u < p(x) / q(x)      accepted: the sequence goes on with x, and so does the walk
//!     else                 p = norm(max(p - q, 0)),  q = norm(q without x)
//! none accepted:           a token from the p that is left       "recovered"
//! no siblings:             a token from p                        "bonus"
//! ```
//!
//! A *known* draft was not drawn (a match in the prompt, a suffix tree, the most likely tokens of a
//! head). Its `q` is one at `x`: it is accepted with probability `p(x)`, and if it is rejected `p`
//! goes on without `x`. So several known siblings are accepted as often as the sum of their
//! probabilities. Drawn siblings are drawn without replacement ([`draw_siblings`]), so each `q`
//! lacks the siblings before it.
//!
//! **Exact.** For every `q`, the token at each position has the target's distribution given the
//! tokens before it; so has the sequence. It is *not* the sequence that plain decoding would give
//! for the same seed: the number that decides depends on where drafts were. Sampling each place as
//! plain decoding would, and going on while the draft is the same ("sample and match"), keeps the
//! tokens themselves and accepts known drafts just as often. Rejection sampling pays for drawn
//! drafts: `sum min(p, q)` of them are accepted, which is the most that any rule can accept.
//!
//! **Randomness.** The proof needs numbers that the draft has not seen. A draft that was drawn with
//! the numbers that judge it, or with those of plain decoding where a bonus is drawn, is accepted
//! more or less often than `p(x) / q(x)` says, and the distribution is another. So each use has a
//! [`Stream`] of its own, counted by (seed, choice, position, sibling):
//!
//! | stream | its number is for |
//! |---|---|
//! | [`Stream::Draft`] | drawing sibling `i`; sampling a draft model takes these numbers and no others |
//! | [`Stream::Accept`] | judging sibling `i` |
//! | [`Stream::Recovered`] | the token when all siblings were rejected |
//! | [`Stream::Token`] | the bonus, which is thus the token that plain decoding draws there |
//! | [`Stream::Exclude`] | whether XTC applies there, before any of these |
//!
//! Whether a sibling is drawn or dropped may not depend on its token: the number of siblings of a
//! place is decided by the tokens above them. Candidates that are ranked and cut are known drafts.
//!
//! **Arithmetic.** Weights are the sampler's f32; everything computed from them is f64: with f32
//! the difference of two close distributions would be mostly rounding, and the sum of a residual
//! over 150,000 tokens too. A residual is summed in the order of the target's weights, by blocks as
//! in [`Distribution`]. Ratios are not formed: `u * q(x) < p(x)` has no zero to divide by, accepts
//! no token that `p` rules out, and a rejected token has `p(x) <= q(x)` in the same bits that are
//! then subtracted, so it is never recovered.
//!
//! **Architecture invariant:** no draft can bring a token of probability zero into an answer. When
//! rounding leaves nothing of a residual (`p` and `q` agree to the last bits and a draft is
//! rejected all the same), the step that emptied it is left out. When the target is one token
//! (greedy, a mask that leaves one or none) this is matching.
//!
//! **Cost.** Accepting the first sibling reads one probability each. The first rejection copies `p`
//! to 8 bytes per weight and each one walks them twice: a vocabulary of 150,000 is 1.2 MB,
//! survivors of top-k next to nothing. `q` is copied likewise. Nothing is allocated once the
//! scratch has grown to the vocabulary.
//!
//! **Dropped:** a rule of its own for siblings drawn with replacement. A repeated token has no
//! share left and is passed over, and the other siblings have the distribution of draws without
//! replacement; so such siblings are right, and only wasteful. A separate `q` for each sibling,
//! which no proposer has. [`typical_lossy`] is lossy, as its name says.
//!
//! ```
//! use pelton_base::{SamplingParams, TokenId};
//! use pelton_sampling::verify::{Place, Proposal, Verdict, Verifier};
//! use pelton_sampling::{Sampler, SamplerState};
//!
//! // Two guesses for one position, and the logits after the known tokens.
//! let (siblings, mut row) = ([3, 1].map(TokenId), [0.0, 9.0, 0.0, 1.0]);
//! let (mut sampler, mut verifier) = (Sampler::new(), Verifier::new());
//! let mut state = SamplerState::new(&SamplingParams::greedy(), &[], 0);
//!
//! let (rng, position) = (state.rng(), 0);
//! let target = sampler.distribution(&mut state, &mut row, 0);
//! let verdict = verifier.judge(&Place { target, rng, position }, siblings, Proposal::Known);
//! // The second sibling is right: it is accepted, and its own drafts are judged next.
//! assert_eq!(verdict, Verdict { token: TokenId(1), accepted: Some(1) });
//! state.accepted(verdict.token);
//! ```
//!
//! Papers: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", ICML
//! 2023; Chen et al., "Accelerating Large Language Model Decoding with Speculative Sampling", 2023;
//! Miao et al., "SpecInfer", ASPLOS 2024, and Yang et al., "Multi-Candidate Speculative Decoding",
//! 2024 (more than one sibling); Jeon et al., "Recursive Speculative Decoding", 2024 (without
//! replacement); Cai et al., "Medusa", ICML 2024 (typical acceptance).
//!
//! [`Stream`]: crate::Stream
//! [`Stream::Draft`]: crate::Stream::Draft
//! [`Stream::Exclude`]: crate::Stream::Exclude
//! [`Stream::Accept`]: crate::Stream::Accept
//! [`Stream::Recovered`]: crate::Stream::Recovered
//! [`Stream::Token`]: crate::Stream::Token

mod siblings;
mod typical;
mod urn;
mod verifier;

pub use siblings::{SiblingScratch, draw_siblings};
pub use typical::{Typical, typical_lossy};
pub use verifier::Verifier;

use crate::{Distribution, Philox};
use pelton_base::TokenId;

/// A position whose token is to be decided.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The distribution that plain decoding would draw from there.
    pub target: Distribution<'a>,
    /// The numbers of the sequence, from [`SamplerState::rng`](crate::SamplerState::rng).
    pub rng: Philox,
    /// Output tokens before it.
    pub position: u64,
}

/// Where the siblings of a place came from.
#[derive(Clone, Copy, Debug)]
pub enum Proposal<'a> {
    /// They were not drawn, or drawn by chance that is independent of `q`.
    Known,
    /// They were drawn from this distribution, each among the tokens that the siblings before it
    /// left.
    Drawn(Distribution<'a>),
}

/// The decision for a place.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Verdict {
    /// The token.
    pub token: TokenId,
    /// Which sibling it is; `None` for a recovered token and for a bonus.
    pub accepted: Option<usize>,
}
