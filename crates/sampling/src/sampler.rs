//! One token out of one row of logits.
//!
//! Three ways, chosen by what the request asks for:
//!
//! - **greedy**: one pass for the maximum;
//! - **whole vocabulary** (no top-k, no top-p): weights in id order, one draw. A min-p cut only
//!   zeroes weights, since it is relative to the largest, whose weight is 1;
//! - **a few** (top-k or top-p): the largest logits are selected and sorted, cut, and drawn from in
//!   that order. Top-p does not know beforehand how many it needs: it selects 256, and 8 times as
//!   many whenever they do not reach `top_p`.
//!
//! The draw is inversion: `u` in `[0, 1)` times the sum of the weights is walked to.

use crate::logprobs::RawRow;
use crate::math::{argmax, exp_nonpositive, max, sum, tame};
use crate::{RowContext, SamplerState, TokenLogprobs, select};
use pelton_base::TokenId;

/// First number of candidates tried for top-p.
const FIRST_CANDIDATES: usize = 256;
/// Weights per partial sum of the whole-vocabulary draw.
const BLOCK: usize = 1024;

/// A chosen token.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// The token.
    pub token: TokenId,
    /// What the model thought of it, if the request asks.
    pub logprobs: Option<TokenLogprobs>,
}

/// Chooses tokens; holds scratch that is reused from row to row and request to request.
#[derive(Debug, Default)]
pub struct Sampler {
    /// The raw row, when it is needed after the processors.
    raw: Vec<f32>,
    /// Weights in id order.
    weights: Vec<f32>,
    /// Sums of `BLOCK` weights each.
    block_sums: Vec<f64>,
    /// Selected logits, largest first.
    keys: Vec<u64>,
}

impl Sampler {
    /// Creates a sampler without scratch; it grows to the vocabulary on first use.
    pub fn new() -> Self {
        Self::default()
    }

    /// Chooses the output token at position `n_generated` from `logits`, which the processors
    /// change in place.
    ///
    /// The state is not told which token was chosen: call [`SamplerState::accepted`] with the
    /// tokens that the sequence really goes on with.
    ///
    /// # Shapes
    ///
    /// `logits`: `[vocab]`; an empty row gives token 0.
    pub fn sample(
        &mut self,
        state: &mut SamplerState,
        logits: &mut [f32],
        n_generated: usize,
    ) -> Sampled {
        let raw_row = state.logprobs.map(|_| {
            self.raw.clear();
            self.raw.extend_from_slice(logits);
            RawRow::new(logits, &mut self.weights)
        });
        let is_greedy = state.temperature == 0.0;
        let row = RowContext { n_generated };
        for processor in &mut state.processors {
            if !(is_greedy && processor.preserves_argmax()) {
                processor.apply(&row, logits);
            }
        }
        let id = if is_greedy {
            argmax(logits)
        } else {
            let u = state.rng.uniform(n_generated as u64);
            if state.top_k == 0 && state.top_p >= 1.0 {
                self.draw_from_all(state, logits, u)
            } else {
                self.draw_from_few(state, logits, u)
            }
        };
        let token = TokenId(id as u32);
        let logprobs = raw_row.zip(state.logprobs).map(|(row, n_top)| TokenLogprobs {
            token,
            logprob: row.logprob(self.raw.get(id).copied().unwrap_or(f32::NEG_INFINITY)),
            top: row.top(&self.raw, n_top, &mut self.keys),
        });
        Sampled { token, logprobs }
    }

    /// Draws from every token whose weight is at least `min_p`.
    fn draw_from_all(&mut self, state: &SamplerState, logits: &[f32], u: f64) -> usize {
        self.weigh_all(state.temperature, logits);
        if state.min_p > 0.0 {
            for weight in &mut self.weights {
                *weight = if *weight < state.min_p { 0.0 } else { *weight };
            }
        }
        self.block_sums.clear();
        self.block_sums.extend(self.weights.chunks(BLOCK).map(sum));
        let total: f64 = self.block_sums.iter().sum();
        let (block, rest) = walk(self.block_sums.iter().copied(), u * total);
        let start = block * BLOCK;
        let in_block = &self.weights[start.min(self.weights.len())..];
        let in_block = &in_block[..in_block.len().min(BLOCK)];
        start + walk(in_block.iter().map(|&weight| f64::from(weight)), rest).0
    }

    /// Draws from the largest: at most `top_k`, then as many as reach `top_p`, then those above
    /// `min_p`.
    fn draw_from_few(&mut self, state: &SamplerState, logits: &[f32], u: f64) -> usize {
        let max = max(logits);
        let weight = |key: u64| {
            let logit = tame(logits[select::id_of(key)]);
            f64::from(exp_nonpositive((logit - max) / state.temperature))
        };
        if state.top_k > 0 {
            select::largest(logits, state.top_k, &mut self.keys);
            if state.top_p < 1.0 {
                let total: f64 = self.keys.iter().map(|&key| weight(key)).sum();
                let reached = reach(self.keys.iter().map(|&key| weight(key)), total, state.top_p);
                self.keys.truncate(reached.unwrap_or(self.keys.len()));
            }
        } else {
            self.weigh_all(state.temperature, logits);
            let total: f64 = self.weights.chunks(BLOCK).map(sum).sum();
            let mut n_candidates = FIRST_CANDIDATES;
            loop {
                select::largest(logits, n_candidates, &mut self.keys);
                match reach(self.keys.iter().map(|&key| weight(key)), total, state.top_p) {
                    Some(n_kept) => break self.keys.truncate(n_kept),
                    None if n_candidates >= logits.len() => break,
                    None => n_candidates = n_candidates.saturating_mul(8),
                }
            }
        }
        if state.min_p > 0.0 {
            let min_p = f64::from(state.min_p);
            self.keys.truncate(self.keys.partition_point(|&key| weight(key) >= min_p).max(1));
        }
        let total: f64 = self.keys.iter().map(|&key| weight(key)).sum();
        let (idx, _) = walk(self.keys.iter().map(|&key| weight(key)), u * total);
        self.keys.get(idx).map_or(0, |&key| select::id_of(key))
    }

    /// Fills `weights` with `exp((l - max) / temperature)`; all zero when nothing is possible.
    fn weigh_all(&mut self, temperature: f32, logits: &[f32]) {
        let max = max(logits);
        self.weights.clear();
        self.weights
            .extend(logits.iter().map(|&logit| exp_nonpositive((tame(logit) - max) / temperature)));
    }
}

/// Number of leading weights whose sum reaches `top_p` of `total`, or `None` if all do not.
fn reach(weights: impl Iterator<Item = f64>, total: f64, top_p: f32) -> Option<usize> {
    let target = f64::from(top_p) * total;
    let mut sum = 0.0;
    for (idx, weight) in weights.enumerate() {
        sum += weight;
        if sum >= target {
            return Some(idx + 1);
        }
    }
    None
}

/// Index of the weight in which `target` falls, and how far into it.
///
/// When rounding leaves `target` at or beyond the end, the last positive weight takes it; when
/// there is no positive weight, the first.
fn walk(weights: impl Iterator<Item = f64>, mut target: f64) -> (usize, f64) {
    let mut last = (0, 0.0);
    for (idx, weight) in weights.enumerate() {
        if weight > 0.0 {
            if target < weight {
                return (idx, target);
            }
            last = (idx, weight);
            target -= weight;
        }
    }
    last
}
