//! Typical acceptance: drafts that are likely enough are taken as they are. **Lossy.**
//!
//! ```text
//! accept x if p(x) > min(epsilon, delta * exp(-H(p)))
//! ```
//!
//! Where the target is sure (its entropy `H` is small) only a token with at least `epsilon` passes;
//! where it is not, a token that is not much rarer than a typical one passes. Neither chance nor
//! the draft model's probabilities are involved. The tokens are plausible but do not have the
//! target's distribution: likely drafts come more often than they should, and unlikely tokens
//! hardly ever where there are drafts.
//!
//! Differs from the paper in two things: the paper takes the longest path of a tree that passes,
//! while here each place takes its first sibling that passes; and the entropy is that of the
//! distribution after all cuts.
//!
//! Paper: Cai et al., "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding
//! Heads", ICML 2024.

use super::{Place, Verdict};
use crate::Distribution;
use crate::math::{exp_nonpositive, ln_positive};
use pelton_base::TokenId;

/// The thresholds of [`typical_lossy`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Typical {
    /// A token that is at least this likely always passes.
    pub epsilon: f64,
    /// How much rarer than a typical token a draft may be.
    pub delta: f64,
}

impl Default for Typical {
    /// The thresholds of its authors: 0.09 and its square root, 0.3.
    fn default() -> Self {
        Self { epsilon: 0.09, delta: 0.3 }
    }
}

/// Decides the token of a place by typical acceptance, which changes the distribution.
///
/// When no sibling passes, the token is the one that plain decoding draws.
pub fn typical_lossy(
    place: &Place<'_>,
    siblings: impl IntoIterator<Item = TokenId>,
    thresholds: Typical,
) -> Verdict {
    let Place { target, rng, position } = place;
    let mut siblings = siblings.into_iter().enumerate().peekable();
    if siblings.peek().is_some() {
        let typical = f64::from(exp_nonpositive(-entropy(target) as f32));
        // Nonsense for thresholds lets nothing pass that the target rules out.
        let least = thresholds.epsilon.min(thresholds.delta * typical).max(0.0);
        if let Some((sibling, token)) =
            siblings.find(|(_, token)| target.probability(*token) > least)
        {
            return Verdict { token, accepted: Some(sibling) };
        }
    }
    Verdict { token: target.draw(rng.uniform(*position)), accepted: None }
}

/// `-sum p ln p`, in nats.
fn entropy(distribution: &Distribution<'_>) -> f64 {
    let terms = distribution.iter().filter(|(_, p)| *p > 0.0).map(|(_, p)| -p * ln_positive(p));
    terms.sum::<f64>().max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Philox, Sampler, SamplerState};
    use pelton_base::SamplingParams;

    fn verdict(params: &SamplingParams, logits: &[f32], siblings: &[u32]) -> Verdict {
        let (mut sampler, mut state) = (Sampler::new(), SamplerState::new(params, &[], 0));
        let mut logits = logits.to_vec();
        let target = sampler.distribution(&mut state, &mut logits, 0);
        let place = Place { target, rng: Philox::new(1, 0), position: 0 };
        typical_lossy(&place, siblings.iter().copied().map(TokenId), Typical::default())
    }

    #[test]
    fn likely_drafts_pass_and_how_likely_depends_on_the_entropy() {
        let plain = SamplingParams::default();
        // 0.843, 0.042, 0.114: entropy 0.52 nats, so epsilon decides.
        let sure = [3.0, 0.0, 1.0];
        assert_eq!(verdict(&plain, &sure, &[1, 2]).accepted, Some(1));
        // 100 equal ones: each has 0.01, above 0.3 / 100.
        let flat = [0.0; 100];
        let answer = verdict(&plain, &flat, &[77, 3]);
        assert_eq!(answer, Verdict { token: TokenId(77), accepted: Some(0) });
        // One of them is 1/e^2 as likely, below it.
        let mut rare = flat;
        rare[77] = -2.0;
        assert_eq!(verdict(&plain, &rare, &[77]).accepted, None);
    }

    #[test]
    fn greedy_is_matching_and_the_impossible_never_passes() {
        for (draft, accepted) in [(0, Some(0)), (1, None), (9, None)] {
            let answer = verdict(&SamplingParams::greedy(), &[3.0, 0.0, 1.0], &[draft]);
            assert_eq!(answer, Verdict { token: TokenId(0), accepted });
        }
        let one_left = [f32::NEG_INFINITY, 0.0];
        assert_eq!(verdict(&SamplingParams::default(), &one_left, &[0]).token, TokenId(1));
    }
}
