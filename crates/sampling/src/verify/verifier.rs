//! Rejection sampling of one place: the siblings in order, then the rest of the target.

use super::urn::Urn;
use super::{Place, Proposal, Verdict};
use crate::Stream;
use pelton_base::TokenId;

/// Judges drafts; holds scratch that is reused from place to place and request to request.
#[derive(Debug, Default)]
pub struct Verifier {
    /// The part of the target that rejections left.
    target: Urn,
    /// The part of the drafts' distribution that the siblings so far left.
    draft: Urn,
    /// Masses by token, zero between calls.
    by_id: Vec<f64>,
}

impl Verifier {
    /// Creates a verifier without scratch; it grows to the vocabulary at the first rejection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Decides the token of a place by rejection sampling, exactly.
    ///
    /// Any tokens may be siblings: one that the target rules out, that is beyond the vocabulary or
    /// that was there before is rejected, and one that its own `q` rules out counts as known. A
    /// draft model may have another vocabulary size.
    ///
    /// # Panics
    ///
    /// If there are 2²⁴ siblings.
    pub fn judge(
        &mut self,
        place: &Place<'_>,
        siblings: impl IntoIterator<Item = TokenId>,
        proposal: Proposal<'_>,
    ) -> Verdict {
        let Place { target, rng, position } = place;
        let mut is_rejected = false;
        for (sibling, token) in siblings.into_iter().enumerate() {
            // The scratch is filled at the first rejection; most places have none.
            let p = if is_rejected { self.target.share(token) } else { target.probability(token) };
            let q = match proposal {
                Proposal::Known => 1.0,
                Proposal::Drawn(draft) if !is_rejected => draft.probability(token),
                Proposal::Drawn(_) => self.draft.share(token),
            };
            let is_drawn = matches!(proposal, Proposal::Drawn(_)) && q > 0.0;
            let u = rng.uniform_of(Stream::Accept, *position, sibling as u32);
            if u * if is_drawn { q } else { 1.0 } < p {
                return Verdict { token, accepted: Some(sibling) };
            }
            if !is_rejected {
                is_rejected = true;
                self.target.fill(target);
                if let Proposal::Drawn(draft) = proposal {
                    self.draft.fill(&draft);
                }
            }
            if is_drawn {
                self.target.subtract(&self.draft, &mut self.by_id);
                self.draft.remove(token);
            } else {
                self.target.remove(token);
            }
        }
        let token = if is_rejected {
            self.target.draw(rng.uniform_of(Stream::Recovered, *position, 0))
        } else {
            target.draw(rng.uniform(*position))
        };
        Verdict { token, accepted: None }
    }
}
