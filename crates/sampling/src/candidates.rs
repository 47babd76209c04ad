//! The likeliest tokens of a row with their log probabilities, from which a search goes on.

use crate::logprobs::RawRow;
use crate::select;
use pelton_base::TokenId;

/// Finds the likeliest tokens of rows; holds scratch.
#[derive(Debug, Default)]
pub struct Candidates {
    weights: Vec<f32>,
    keys: Vec<u64>,
}

impl Candidates {
    /// Puts the `n` likeliest tokens that `masked` leaves into `candidates`, the likeliest first, the
    /// lower id among equals; fewer where fewer are possible.
    ///
    /// Each has the log probability that the model gives it: the natural logarithm of the softmax of
    /// `raw` over the whole row, in which masked tokens count too.
    ///
    /// # Shapes
    ///
    /// `raw`, `masked`: `[vocab]`; `masked` is `raw` with minus infinity for tokens that are ruled
    /// out.
    pub fn find(
        &mut self,
        raw: &[f32],
        masked: &[f32],
        n: usize,
        candidates: &mut Vec<(TokenId, f32)>,
    ) {
        let row = RawRow::new(raw, &mut self.weights);
        select::largest(masked, n, &mut self.keys);
        candidates.clear();
        let ids = self.keys.iter().map(|&key| select::id_of(key));
        candidates.extend(ids.map(|id| (TokenId(id as u32), row.logprob(raw[id]))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_masked_is_no_candidate_and_keeps_its_probability() {
        let (mut finder, mut candidates) = (Candidates::default(), Vec::new());
        let raw = [1.0, 3.0, f32::NEG_INFINITY, 3.0, f32::NAN];
        finder.find(&raw, &raw, 9, &mut candidates);
        let ids: Vec<u32> = candidates.iter().map(|(token, _)| token.0).collect();
        assert_eq!(ids, [1, 3, 0], "neither the impossible token nor NaN");
        let sum = (2.0 * 3.0_f64.exp() + 1.0_f64.exp()).ln();
        assert!((f64::from(candidates[0].1) - (3.0 - sum)).abs() < 1e-6);

        let masked = [1.0, f32::NEG_INFINITY, f32::NEG_INFINITY, 3.0, 0.0];
        let before = candidates[1];
        finder.find(&raw, &masked, 1, &mut candidates);
        assert_eq!(candidates, [before]);
        finder.find(&[f32::NAN; 3], &[f32::NAN; 3], 2, &mut candidates);
        assert_eq!(candidates, []);
    }
}
