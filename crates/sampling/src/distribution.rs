//! The distribution that a token is drawn from: the probabilities after all processors and cuts.
//!
//! Weights as the sampler has them, not normalised, f32: of the whole vocabulary in id order, or of
//! the tokens that survived the cuts, largest first unless a stage has another order. The probability of a token is
//! `weight * (1 / total)` in f64, where the total is
//!
//! - of a whole vocabulary: sums of 1024 weights in 8 lanes each, the sums added in id order;
//! - of survivors: added in their order.
//!
//! These are the sums by which [`Sampler::sample`](crate::Sampler::sample) draws, so
//! [`draw`](Distribution::draw) with the number that it would use gives the token that it would
//! give, bit for bit.

use crate::math::{block_sums, invert, invert_blocks};
use pelton_base::TokenId;

/// A view of the probabilities of one place.
#[derive(Clone, Copy, Debug)]
pub struct Distribution<'a> {
    /// The tokens that have weights; `None` when the index of a weight is its token.
    pub(crate) ids: Option<&'a [TokenId]>,
    pub(crate) weights: &'a [f32],
    /// Above zero, for one weight at least is.
    pub(crate) total: f64,
    pub(crate) n_vocab: usize,
}

impl<'a> Distribution<'a> {
    /// Tokens of the vocabulary, whatever their probability.
    pub fn n_vocab(&self) -> usize {
        self.n_vocab
    }

    /// The tokens that are not ruled out for good, and their probabilities, some of which may be
    /// zero; each token once.
    pub fn iter(&self) -> impl Iterator<Item = (TokenId, f64)> + use<'a> {
        let Self { ids, weights, total, .. } = *self;
        weights.iter().enumerate().map(move |(idx, &weight)| {
            (ids.map_or(TokenId(idx as u32), |ids| ids[idx]), f64::from(weight) * (1.0 / total))
        })
    }

    /// The probability of a token; zero beyond the vocabulary.
    pub fn probability(&self, token: TokenId) -> f64 {
        let idx = match self.ids {
            None => Some(token.0 as usize),
            Some(ids) => ids.iter().position(|&id| id == token),
        };
        let weight = idx.and_then(|idx| self.weights.get(idx)).copied().unwrap_or(0.0);
        f64::from(weight) * (1.0 / self.total)
    }

    /// The token at `u` in `[0, 1)`, by inversion; its probability is never zero.
    pub fn draw(&self, u: f64) -> TokenId {
        let target = u * self.total;
        match self.ids {
            None => {
                let sums = block_sums(self.weights);
                TokenId(invert_blocks(self.weights, sums, target) as u32)
            }
            Some(ids) => ids[invert(self.weights, target).0],
        }
    }
}

/// A distribution that is kept, as the one that a draft was drawn from has to be until it is
/// verified.
///
/// Takes 4 bytes per token of the vocabulary, or 8 for each survivor.
#[derive(Clone, Debug, Default)]
pub struct KeptDistribution {
    is_sparse: bool,
    ids: Vec<TokenId>,
    weights: Vec<f32>,
    total: f64,
    n_vocab: usize,
}

impl KeptDistribution {
    /// Keeps a copy, in the memory of the distribution that was kept before.
    pub fn keep(&mut self, distribution: &Distribution<'_>) {
        self.is_sparse = distribution.ids.is_some();
        self.ids.clear();
        self.ids.extend_from_slice(distribution.ids.unwrap_or(&[]));
        self.weights.clear();
        self.weights.extend_from_slice(distribution.weights);
        self.total = distribution.total;
        self.n_vocab = distribution.n_vocab;
    }

    /// The distribution that is kept; `None` before the first.
    pub fn get(&self) -> Option<Distribution<'_>> {
        (!self.weights.is_empty()).then_some(Distribution {
            ids: self.is_sparse.then_some(&self.ids[..]),
            weights: &self.weights,
            total: self.total,
            n_vocab: self.n_vocab,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::math::sum;

    #[test]
    fn a_draw_changes_blocks_exactly_where_the_sampler_does() {
        let weights: Vec<f32> = (0..4000_u16).map(|i| 1.0 / (f32::from(i % 97) + 1.3)).collect();
        let total: f64 = block_sums(&weights).sum();
        let distribution = Distribution { ids: None, weights: &weights, total, n_vocab: 4000 };
        let mut before = 0.0;
        for (block, chunk) in weights.chunks(1024).enumerate().take(3) {
            before += sum(chunk);
            let u = before / total;
            let last = (block as u32 + 1) * 1024 - 1;
            assert_eq!(distribution.draw(u * (1.0 - 1e-14)), TokenId(last));
            assert_eq!(distribution.draw(u * (1.0 + 1e-14)), TokenId(last + 1));
        }
    }
}
