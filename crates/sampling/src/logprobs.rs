//! Log probabilities of the model itself, before any processor changed its logits, or of the
//! distribution that tokens are drawn from.
//!
//! ```text
//!   raw          ln softmax(logits of the model)
//!   processed    greedy: ln softmax(logits after bias, penalties and masks)
//!                drawn:  ln(weight / total), the sampler's own weights after temperature and cuts
//! ```

use crate::math::{exp_nonpositive, ln_positive, max, sum, tame};
use crate::select;
use pelton_base::TokenId;

/// The distribution whose log probabilities are reported, under vLLM's names.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum LogprobsMode {
    /// That of the model, before everything that shapes it.
    #[default]
    Raw,
    /// The one that tokens are drawn from, after processors, temperature and truncation. A greedy
    /// request has neither temperature nor truncation, so it is that of the logits after all
    /// processors.
    Processed,
}

impl LogprobsMode {
    /// Every mode.
    pub const ALL: &[Self] = &[Self::Raw, Self::Processed];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw_logprobs",
            Self::Processed => "processed_logprobs",
        }
    }
}

/// Log probabilities of one sampled token and of the most likely ones at its position.
///
/// Natural logarithms; [`LogprobsMode`] says of which distribution. A token that is ruled out has
/// minus infinity.
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

/// A token that was given, such as one of a prompt, and how likely the model held it for.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoredToken {
    /// The token, its log probability, and the most likely tokens in its place.
    pub logprobs: TokenLogprobs,
    /// Its place among all tokens, the most likely being 1; the lower id goes first among equals.
    pub rank: usize,
}

/// Scores tokens that were given; holds scratch.
#[derive(Debug, Default)]
pub struct Scorer {
    weights: Vec<f32>,
    keys: Vec<u64>,
}

impl Scorer {
    /// The log probability of `token` after a row, as the [`Sampler`](crate::Sampler) reports that of
    /// a token that it draws, with the `n_top` most likely ones. A token that is not among the
    /// logits has no probability, and the last rank.
    ///
    /// # Shapes
    ///
    /// `logits`: `[vocab]`, raw.
    pub fn score(&mut self, logits: &[f32], token: TokenId, n_top: usize) -> ScoredToken {
        let row = RawRow::new(logits, &mut self.weights);
        let place = token.0 as usize;
        let (logprob, rank) = match logits.get(place) {
            None => (f32::NEG_INFINITY, logits.len() + 1),
            Some(&logit) => {
                let own = select::key(place, logit);
                let above = |&(id, logit): &(usize, &f32)| select::key(id, *logit) > own;
                (row.logprob(logit), 1 + logits.iter().enumerate().filter(above).count())
            }
        };
        let top = row.top(logits, n_top, &mut self.keys);
        ScoredToken { logprobs: TokenLogprobs { token, logprob, top }, rank }
    }
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

/// The weights that a token was drawn by, kept until it is known.
#[derive(Debug)]
pub(crate) struct DrawnRow {
    log_total: f64,
}

impl DrawnRow {
    /// `total` is the sum of all weights as the sampler has it; zero where nothing is possible.
    pub(crate) fn new(total: f64) -> Self {
        Self { log_total: if total > 0.0 { ln_positive(total) } else { 0.0 } }
    }

    /// Log probability of a token with this weight.
    pub(crate) fn logprob(&self, weight: f32) -> f32 {
        if weight > 0.0 {
            (ln_positive(f64::from(weight)) - self.log_total) as f32
        } else {
            f32::NEG_INFINITY
        }
    }

    /// The `n` most likely tokens of those that are possible; `keys` is scratch.
    pub(crate) fn top(
        &self,
        weights: &[f32],
        n: usize,
        keys: &mut Vec<u64>,
    ) -> Vec<(TokenId, f32)> {
        select::largest(weights, n, keys);
        let ids = keys.iter().map(|&key| select::id_of(key)).filter(|&id| weights[id] > 0.0);
        ids.map(|id| (TokenId(id as u32), self.logprob(weights[id]))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_given_token_has_its_probability_and_its_place_among_all() {
        let mut scorer = Scorer::default();
        let logits = [1.0, 3.0, f32::NEG_INFINITY, 3.0, f32::NAN];
        let sum = 1.0_f64.exp() + 2.0 * 3.0_f64.exp();
        let ranks: Vec<usize> =
            (0..6).map(|id| scorer.score(&logits, TokenId(id), 2).rank).collect();
        assert_eq!(ranks, [3, 1, 4, 2, 5, 6], "the lower id goes first among equals");
        let first = scorer.score(&logits, TokenId(0), 9).logprobs;
        assert!((f64::from(first.logprob) - (1.0 - sum.ln())).abs() < 1e-6, "{first:?}");
        let top: Vec<u32> = first.top.iter().map(|(token, _)| token.0).collect();
        assert_eq!(top, [1, 3, 0], "tokens that are not possible are not among the top");
        assert_eq!(first.top[2].1, first.logprob);
        for token in [2, 4, 5] {
            let none = scorer.score(&logits, TokenId(token), 0).logprobs;
            assert_eq!((none.logprob, none.top.len()), (f32::NEG_INFINITY, 0));
        }
    }
}
