//! Top-n-sigma: the logits that stand out of the noise.
//!
//! ```text
//! keep l  where  l >= max - n * sigma
//! ```
//!
//! `sigma` is the standard deviation of the candidates' logits, as in llama.cpp; the paper takes all
//! logits of the row, which is the same where no mask has made tokens impossible and no stage came
//! before. The temperature changes neither side of the comparison, so it may come before or after.
//!
//! Paper: Tang et al., "Top-nσ: Not All Logits Are You Need", 2024.

use super::Candidates;
use crate::select::logit_of;

impl Candidates<'_> {
    /// Keeps logits within `n` standard deviations of the largest.
    pub(crate) fn top_n_sigma(&mut self, n: f32) {
        let count = self.keys.len().max(1) as f64;
        let logits = || self.keys.iter().map(|&key| f64::from(logit_of(key)));
        let mean = logits().sum::<f64>() / count;
        let variance = logits().map(|logit| (logit - mean) * (logit - mean)).sum::<f64>() / count;
        let least = f64::from(self.max()) - f64::from(n) * variance.sqrt();
        self.keep_if(|logit| f64::from(logit) >= least);
    }
}
