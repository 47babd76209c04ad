//! The distributions that drafts were drawn from, for verification.
//!
//! Matching needs the drafts alone. Rejection sampling needs the distribution that each was drawn
//! from as well: as many weights as the vocabulary has tokens, or as survived top-k and top-p. They
//! belong to the executor, which lends them to proposers while they draft.

use pelton_base::{RequestId, TokenId};
use pelton_sampling::verify::{Place, SiblingScratch, draw_siblings};
use pelton_sampling::{Distribution, KeptDistribution, Sampler, SamplerState};
use std::collections::HashMap;

/// The distributions behind the drafts of one plan.
#[derive(Debug, Default)]
pub struct Odds {
    chains: HashMap<RequestId, DrawnChain>,
}

/// The distributions behind one request's chain of drafts.
#[derive(Debug, Default)]
pub struct DrawnChain {
    kept: Vec<KeptDistribution>,
    n_drawn: usize,
    drawn: Vec<TokenId>,
    scratch: SiblingScratch,
}

impl Odds {
    /// Forgets the distributions of earlier drafts, and keeps the memory.
    pub fn forget(&mut self) {
        self.chains.values_mut().for_each(|chain| chain.n_drawn = 0);
    }

    /// The chain that takes the distributions of a request's drafts, in their order.
    pub fn chain(&mut self, id: RequestId) -> &mut DrawnChain {
        self.chains.entry(id).or_default()
    }

    /// The distribution that the draft at `place` of a request was drawn from; `None` when it was
    /// not drawn.
    pub fn at(&self, id: RequestId, place: usize) -> Option<Distribution<'_>> {
        let chain = self.chains.get(&id).filter(|chain| place < chain.n_drawn)?;
        chain.kept[place].get()
    }

    /// Forgets a request and its memory.
    pub fn finished(&mut self, id: RequestId) {
        self.chains.remove(&id);
    }
}

impl DrawnChain {
    /// Draws the next draft from a row of logits, with the numbers that are kept for drafts, and
    /// keeps the distribution.
    pub fn draw(
        &mut self,
        sampler: &mut Sampler,
        state: &mut SamplerState,
        logits: &mut [f32],
        position: usize,
    ) -> TokenId {
        let rng = state.rng();
        let target = sampler.distribution(state, logits, position);
        if self.n_drawn == self.kept.len() {
            self.kept.push(KeptDistribution::default());
        }
        self.kept[self.n_drawn].keep(&target);
        self.n_drawn += 1;
        self.drawn.clear();
        let place = Place { target, rng, position: position as u64 };
        draw_siblings(&place, 1, &mut self.scratch, &mut self.drawn);
        self.drawn[0]
    }
}
