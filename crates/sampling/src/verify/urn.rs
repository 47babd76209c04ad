//! The rest of a distribution, while tokens are taken out of it or another one is subtracted.

use crate::Distribution;
use crate::math::{block_sums, invert_blocks};
use pelton_base::TokenId;

/// Masses of tokens, not normalised, in the order of the distribution that it was filled with.
///
/// Once filled it always has a token left: a step that would empty it is left out.
#[derive(Debug, Default)]
pub(super) struct Urn {
    /// Of survivors; unused when the index of a mass is its token.
    ids: Vec<TokenId>,
    is_sparse: bool,
    masses: Vec<f64>,
    total: f64,
    n_vocab: usize,
}

impl Urn {
    /// Starts from all of a distribution, in the same bits.
    pub(super) fn fill(&mut self, distribution: &Distribution<'_>) {
        let Distribution { ids, weights, total, n_vocab } = *distribution;
        self.is_sparse = ids.is_some();
        self.ids.clear();
        self.masses.clear();
        // Survivors are few at one place and many at the next: make room for the most at once.
        self.masses.reserve(n_vocab);
        if let Some(ids) = ids {
            self.ids.reserve(n_vocab);
            self.ids.extend_from_slice(ids);
        }
        self.masses.extend(weights.iter().map(|&weight| f64::from(weight)));
        (self.total, self.n_vocab) = (total, n_vocab);
    }

    /// Takes a token out; answers whether it had a share and was not the last that had one.
    pub(super) fn remove(&mut self, token: TokenId) -> bool {
        let Some(idx) = self.find(token).filter(|&idx| self.masses[idx] > 0.0) else {
            return false;
        };
        let mass = std::mem::take(&mut self.masses[idx]);
        let total = block_sums(&self.masses).sum();
        if !is_mass(total) {
            self.masses[idx] = mass;
            return false;
        }
        self.total = total;
        true
    }

    /// Takes from each share that of the same token in `other`, as far as it reaches; `by_id` is
    /// scratch, all zero before and after.
    pub(super) fn subtract(&mut self, other: &Self, by_id: &mut Vec<f64>) {
        if other.is_sparse {
            if by_id.len() < other.n_vocab.max(self.n_vocab) {
                by_id.resize(other.n_vocab.max(self.n_vocab), 0.0);
            }
            for (id, &mass) in other.ids.iter().zip(&other.masses) {
                if let Some(place) = by_id.get_mut(id.0 as usize) {
                    *place = mass;
                }
            }
        }
        let taken = if other.is_sparse { &by_id[..] } else { &other.masses[..] };
        let (scale, other_scale) = (1.0 / self.total, 1.0 / other.total);
        let ids = self.is_sparse.then_some(&self.ids);
        let rest = |(idx, &mass): (usize, &f64)| {
            let id = ids.map_or(idx, |ids| ids[idx].0 as usize);
            let other_mass = taken.get(id).copied().unwrap_or(0.0);
            (mass * scale - other_mass * other_scale).max(0.0)
        };
        // First whether anything remains, since nothing else can be done about it afterwards.
        let remains = self.masses.iter().enumerate().map(rest).sum();
        if is_mass(remains) {
            for idx in 0..self.masses.len() {
                self.masses[idx] = rest((idx, &self.masses[idx]));
            }
            self.total = block_sums(&self.masses).sum();
        }
        if other.is_sparse {
            for id in &other.ids {
                if let Some(place) = by_id.get_mut(id.0 as usize) {
                    *place = 0.0;
                }
            }
        }
    }

    /// The share of a token in the rest.
    pub(super) fn share(&self, token: TokenId) -> f64 {
        self.find(token).map_or(0.0, |idx| self.masses[idx] * (1.0 / self.total))
    }

    /// The token at `u` in `[0, 1)`, by inversion; one that has a share.
    pub(super) fn draw(&self, u: f64) -> TokenId {
        let idx = invert_blocks(&self.masses, block_sums(&self.masses), u * self.total);
        if self.is_sparse { self.ids[idx] } else { TokenId(idx as u32) }
    }

    fn find(&self, token: TokenId) -> Option<usize> {
        if self.is_sparse {
            return self.ids.iter().position(|&id| id == token);
        }
        Some(token.0 as usize).filter(|&idx| idx < self.masses.len())
    }
}

/// Whether a sum can be divided by.
fn is_mass(total: f64) -> bool {
    total >= f64::MIN_POSITIVE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn urn(weights: &[f32], ids: Option<&[TokenId]>) -> Urn {
        let total = weights.iter().map(|&weight| f64::from(weight)).sum();
        let mut urn = Urn::default();
        urn.fill(&Distribution { ids, weights, total, n_vocab: 6 });
        urn
    }

    fn shares(urn: &Urn) -> Vec<f64> {
        (0..6).map(|id| urn.share(TokenId(id))).collect()
    }

    #[test]
    fn a_difference_is_the_same_whichever_side_is_sparse() {
        let ids = [5, 0, 2].map(TokenId);
        let full = |weights: [f32; 3]| [weights[1], 0.0, weights[2], 0.0, 0.0, weights[0]];
        let (p, q) = ([0.5, 0.25, 0.25], [0.25, 0.75, 0.0]);
        let mut by_id = Vec::new();
        for (p_is_sparse, q_is_sparse) in
            [(true, true), (true, false), (false, true), (false, false)]
        {
            let mut left = if p_is_sparse { urn(&p, Some(&ids)) } else { urn(&full(p), None) };
            let right = if q_is_sparse { urn(&q, Some(&ids)) } else { urn(&full(q), None) };
            left.subtract(&right, &mut by_id);
            assert_eq!(shares(&left), [0.0, 0.0, 0.5, 0.0, 0.0, 0.5]);
            assert!(by_id.iter().all(|&mass| mass == 0.0));
            assert_eq!(
                (left.draw(0.0), left.draw(0.999)),
                match p_is_sparse {
                    true => (TokenId(5), TokenId(2)),
                    false => (TokenId(2), TokenId(5)),
                }
            );
        }
    }

    #[test]
    fn what_would_leave_nothing_is_not_done() {
        let mut left = urn(&[0.1, 0.0, 0.7, 0.0, 0.0, 0.3], None);
        let before = shares(&left);
        let all = urn(&[0.1, 0.0, 0.7, 0.0, 0.0, 0.3], None);
        left.subtract(&all, &mut Vec::new());
        assert_eq!(shares(&left), before);
        assert!(left.remove(TokenId(0)) && left.remove(TokenId(5)));
        assert!(!left.remove(TokenId(5)) && !left.remove(TokenId(1)) && !left.remove(TokenId(99)));
        assert!(!left.remove(TokenId(2)), "the last one stays");
        assert_eq!((left.draw(0.0), left.draw(0.9)), (TokenId(2), TokenId(2)));
    }
}
