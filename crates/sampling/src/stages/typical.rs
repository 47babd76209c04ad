//! Typical-p: the tokens whose surprise is near the expected one.
//!
//! ```text
//! x = (l - max) / temperature          ln p = x - ln(sum of e^x)
//! | -ln p - H |  =  | x - E[x] |       so no logarithm of a token is needed
//! ```
//!
//! The candidates are taken by this distance, the nearest first and the lower id among equals, until
//! their probability reaches `typical_p`. Distances are compared as f32. llama.cpp goes on until the
//! probability is larger than `typical_p`, which differs where it is hit exactly.
//!
//! Paper: Meister et al., "Locally Typical Sampling", TACL 2023.

use super::Candidates;
use super::candidates::sort_until;
use crate::math::exp_nonpositive;
use crate::select::{self, id_of, logit_of};

impl Candidates<'_> {
    /// Keeps the smallest set of the most typical whose probability reaches `p`.
    pub(crate) fn typical(&mut self, p: f32) {
        if self.keys.is_empty() {
            return;
        }
        let (total, max, temperature) = (self.weigh(), self.max(), self.temperature);
        let x = |logit: f32| f64::from((logit - max) / temperature);
        // What cannot be drawn has no share in the expectation, and may be infinitely far.
        let shares = self.keys.iter().zip(&*self.weights).filter(|(_, weight)| **weight > 0.0);
        let sum: f64 = shares.map(|(&key, &weight)| f64::from(weight) * x(logit_of(key))).sum();
        let mean = sum / total;
        // The nearest first means the largest negated distance first.
        let score = |key: u64| -((x(logit_of(key)) - mean).abs() as f32);
        self.scratch.clear();
        self.scratch.extend((0..self.keys.len()).map(|idx| {
            let key = self.keys[idx];
            select::key(idx, score(key))
        }));
        let weight = |key: u64| exp_nonpositive((logit_of(key) - max) / temperature);
        let keys = &*self.keys;
        let target = f64::from(p) * total;
        let n = sort_until(self.scratch, target, self.min_keep, |score| weight(keys[id_of(score)]));
        // Back to keys of logits, in place.
        for score in &mut self.scratch[..n] {
            *score = keys[id_of(*score)];
        }
        self.scratch.truncate(n);
        std::mem::swap(self.keys, self.scratch);
        self.unsort();
    }
}
