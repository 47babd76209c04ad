//! The tokens that are left of a row, and the truncations that need no more than their order.

use crate::math::{exp_nonpositive, tame};
use crate::select::{self, id_of, logit_of};

/// Candidates that are sorted first where it is not known how many are needed.
const FIRST_SORTED: usize = 32;

/// The tokens that are left of a row, as keys (see [`select`]), and the temperature so far.
///
/// Empty only where no token of the row is possible.
pub(crate) struct Candidates<'a> {
    pub(super) keys: &'a mut Vec<u64>,
    /// Of the keys, in their order, as they were when [`weigh`](Self::weigh) was last called.
    pub(super) weights: &'a mut Vec<f32>,
    pub(super) scratch: &'a mut Vec<u64>,
    pub(super) temperature: f32,
    /// Tokens that every truncation leaves; at least 1.
    pub(super) min_keep: usize,
    /// Whether the keys are sorted, the largest first.
    is_sorted: bool,
    n_vocab: usize,
}

impl<'a> Candidates<'a> {
    /// Starts with every possible token of a row, or with the `first_k` largest; the vectors are
    /// scratch, `keys` and `weights` hold the result.
    pub(crate) fn new(
        logits: &[f32],
        first_k: Option<usize>,
        min_keep: usize,
        [keys, scratch]: [&'a mut Vec<u64>; 2],
        weights: &'a mut Vec<f32>,
    ) -> Self {
        let n_vocab = logits.len();
        keys.clear();
        keys.reserve(n_vocab);
        weights.clear();
        weights.reserve(n_vocab);
        scratch.clear();
        scratch.reserve(n_vocab);
        if let Some(k) = first_k {
            select::largest(logits, k, keys);
        } else {
            let rows = logits.iter().enumerate();
            let possible = rows.filter(|(_, logit)| **logit > f32::NEG_INFINITY);
            keys.extend(possible.map(|(id, &logit)| select::key(id, tame(logit))));
        }
        let is_sorted = first_k.is_some();
        Self { keys, weights, scratch, temperature: 1.0, min_keep, is_sorted, n_vocab }
    }

    /// Tokens of the vocabulary, possible or not.
    pub(super) fn n_vocab(&self) -> usize {
        self.n_vocab
    }

    /// Fills `weights` with `exp((l - max) / temperature)`; returns their sum, which is at least 1
    /// where there is a candidate.
    pub(crate) fn weigh(&mut self) -> f64 {
        let (max, temperature) = (self.max(), self.temperature);
        let weight = |&key: &u64| exp_nonpositive((logit_of(key) - max) / temperature);
        self.weights.clear();
        self.weights.extend(self.keys.iter().map(weight));
        self.weights.iter().map(|&weight| f64::from(weight)).sum()
    }

    /// The largest logit; 0 where there is no candidate.
    pub(super) fn max(&self) -> f32 {
        let largest = if self.is_sorted { self.keys.first() } else { self.keys.iter().max() };
        largest.map_or(0.0, |&key| logit_of(key))
    }

    /// Keeps the `k` largest, or `min_keep` where that is more.
    pub(crate) fn keep_largest(&mut self, k: usize) {
        let k = k.max(self.min_keep);
        if k < self.keys.len() {
            self.keep_sorted(k);
        }
    }

    /// Keeps the `n` largest, sorted.
    fn keep_sorted(&mut self, n: usize) {
        if !self.is_sorted {
            select::sort_largest(self.keys, n);
        }
        self.keys.truncate(n);
        self.is_sorted = true;
    }

    /// Keeps the candidates that pass, which are the largest ones; where these are fewer than
    /// `min_keep`, the `min_keep` largest.
    pub(super) fn keep_if(&mut self, mut passes: impl FnMut(f32) -> bool) {
        let n_passing = self.keys.iter().filter(|&&key| passes(logit_of(key))).count();
        if n_passing < self.min_keep.min(self.keys.len()) {
            self.keep_largest(self.min_keep);
        } else {
            self.keys.retain(|&key| passes(logit_of(key)));
        }
    }

    /// Keeps the candidates that pass, as they stand; at least one does.
    pub(super) fn retain(&mut self, mut passes: impl FnMut(u64) -> bool) {
        self.keys.retain(|&key| passes(key));
    }

    /// Notes that the keys are in another order than by size.
    pub(super) fn unsort(&mut self) {
        self.is_sorted = false;
    }

    /// Keeps the smallest set of the likeliest whose probability reaches `p`.
    pub(crate) fn top_p(&mut self, p: f32) {
        let (total, max) = (self.weigh(), self.max());
        let target = f64::from(p) * total;
        if !self.is_sorted {
            // Tokens below this have less than `1 - p` together; half of it, because of rounding.
            let least = 0.5 * (1.0 - f64::from(p)) * total / self.keys.len().max(1) as f64;
            let likely = self.keys.iter().zip(&*self.weights);
            self.scratch.clear();
            self.scratch.extend(
                likely.filter(|(_, weight)| f64::from(**weight) >= least).map(|(&key, _)| key),
            );
            if self.scratch.len() >= self.min_keep {
                std::mem::swap(self.keys, self.scratch);
            }
        }
        let temperature = self.temperature;
        let weight = |key| exp_nonpositive((logit_of(key) - max) / temperature);
        let n = sort_until(self.keys, target, self.min_keep, weight);
        self.keys.truncate(n);
        self.is_sorted = true;
    }

    /// Drops the tokens that are less likely than `p` times the likeliest.
    pub(crate) fn min_p(&mut self, p: f32) {
        let (max, temperature) = (self.max(), self.temperature);
        self.keep_if(|logit| exp_nonpositive((logit - max) / temperature) >= p);
    }
}

/// Sorts keys, the largest first, until the weights of the sorted reach `target` and there are
/// `n_least`; returns how many that takes.
pub(super) fn sort_until(
    keys: &mut [u64],
    target: f64,
    n_least: usize,
    weight: impl Fn(u64) -> f32,
) -> usize {
    let (mut sum, mut start, mut n_next) = (0.0, 0, FIRST_SORTED);
    while start < keys.len() {
        let rest = &mut keys[start..];
        let n_sorted = n_next.min(rest.len());
        select::sort_largest(rest, n_sorted);
        for (idx, &key) in rest[..n_sorted].iter().enumerate() {
            sum += f64::from(weight(key));
            let n = start + idx + 1;
            if sum >= target && n >= n_least {
                return n;
            }
        }
        (start, n_next) = (start + n_sorted, n_next.saturating_mul(4));
    }
    keys.len()
}

impl std::fmt::Debug for Candidates<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ids: Vec<usize> = self.keys.iter().take(16).map(|&key| id_of(key)).collect();
        f.debug_struct("Candidates").field("n", &self.keys.len()).field("first", &ids).finish()
    }
}
