//! Drawing the drafts of one place from a draft model's distribution.

use super::Place;
use super::urn::Urn;
use crate::Stream;
use pelton_base::TokenId;

/// Scratch of [`draw_siblings`], kept for its next call.
#[derive(Debug, Default)]
pub struct SiblingScratch(Urn);

/// Draws up to `n_most` different tokens one after the other, without replacement, and appends them
/// to `siblings`; fewer when fewer have a probability.
///
/// The place's target is the distribution of the draft model; its random numbers are those of the
/// sequence that is drafted for. Pass that distribution to
/// [`Verifier::judge`](super::Verifier::judge) as [`Proposal::Drawn`](super::Proposal::Drawn).
pub fn draw_siblings(
    place: &Place<'_>,
    n_most: usize,
    scratch: &mut SiblingScratch,
    siblings: &mut Vec<TokenId>,
) {
    let Place { target, rng, position } = place;
    let SiblingScratch(urn) = scratch;
    let draw = |sibling: usize| rng.uniform_of(Stream::Draft, *position, sibling as u32);
    if n_most == 0 {
        return;
    }
    let mut token = target.draw(draw(0));
    siblings.push(token);
    if n_most > 1 {
        urn.fill(target);
    }
    for sibling in 1..n_most {
        if !urn.remove(token) {
            break; // It was the last.
        }
        token = urn.draw(draw(sibling));
        siblings.push(token);
    }
}
