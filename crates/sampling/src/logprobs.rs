//! Log probabilities of the model itself, before any processor changed its logits.

use crate::math::{exp_nonpositive, ln_positive, max, sum, tame};
use crate::select;
use pelton_base::TokenId;

/// Log probabilities of one sampled token and of the most likely ones at its position.
///
/// Natural logarithms of the softmax of the *raw* logits: bias, penalties, temperature and
/// truncation do not show. A token that the model rules out has minus infinity.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// The sampled token.
    pub token: TokenId,
    /// Its log probability.
    pub logprob: f32,
    /// The most likely tokens, most likely first, the lower id first among equals; as many as were
    /// asked for, and fewer only when fewer are possible. The sampled token need not be among them.
    pub top: Vec<(TokenId, f32)>,
}

/// The raw distribution of one row, kept until its token is known.
#[derive(Debug)]
pub(crate) struct RawRow {
    max: f32,
    log_sum: f64,
}

impl RawRow {
    /// Measures a row; `weights` is scratch.
    pub(crate) fn new(logits: &[f32], weights: &mut Vec<f32>) -> Self {
        let max = max(logits);
        weights.clear();
        weights.extend(logits.iter().map(|&logit| exp_nonpositive(tame(logit) - max)));
        // Our own logarithm, because beams are chosen by the outcome.
        Self { max, log_sum: ln_positive(sum(weights)) }
    }

    /// Log probability of a token with this raw logit.
    pub(crate) fn logprob(&self, logit: f32) -> f32 {
        let logit = tame(logit);
        if logit == f32::NEG_INFINITY {
            return f32::NEG_INFINITY; // Also when all are: there is no probability to share.
        }
        (f64::from(logit) - f64::from(self.max) - self.log_sum) as f32
    }

    /// The `n` most likely tokens; `keys` is scratch.
    pub(crate) fn top(&self, logits: &[f32], n: usize, keys: &mut Vec<u64>) -> Vec<(TokenId, f32)> {
        select::largest(logits, n, keys);
        let ids = keys.iter().map(|&key| select::id_of(key));
        ids.map(|id| (TokenId(id as u32), self.logprob(logits[id]))).collect()
    }
}
