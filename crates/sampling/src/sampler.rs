//! One token out of one row of logits.
//!
//! Four ways, chosen by the parameters of the request:
//!
//! - **greedy**: one pass for the maximum;
//! - **whole vocabulary** (no top-k, no top-p): weights in id order, one draw. A min-p cut only
//!   zeroes weights, since it is relative to the largest, whose weight is 1;
//! - **a few** (top-k or top-p): the largest logits are selected and sorted, cut, and drawn from in
//!   that order;
//! - **in stages**, where more is asked for: typical-p, top-n-sigma, XTC, a dynamic temperature,
//!   Mirostat, `min_keep`, or another order. See the chapter of `stages`.
//!
//! Top-p does not know beforehand how many it needs, but whom it cannot need: tokens below
//! `(1 - top_p) / n` of the total have less than `1 - top_p` of it together, when there are `n` of
//! them. It tries with `n = 256` and, when the rest does not reach `top_p`, with the whole
//! vocabulary. Of the rest the largest 32 are sorted, then 4 times as many more, until they
//! reach it. So it reads the vocabulary three times (maximum; weights and their sum; candidates),
//! four times when the distribution is flat. Top-k alone reads it once.
//!
//! The draw is inversion: `u` in `[0, 1)` times the sum of the weights is walked to. A caller that
//! draws in another way asks for the [`Distribution`], which has the same weights.

use crate::logprobs::{DrawnRow, RawRow};
use crate::math::{BLOCK, argmax, exp_nonpositive, invert, invert_blocks, max, sum, tame};
use crate::stages::{Candidates, Plan, Staged};
use crate::{Distribution, LogprobsMode, RowContext, SamplerState, Stream, TokenLogprobs, select};
use pelton_base::TokenId;

/// Tokens that probably hold the probability that top-p drops.
const LIKELY_CANDIDATES: usize = 256;
/// Candidates for top-p that are sorted first.
const FIRST_SORTED: usize = 32;

/// A chosen token.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// The token.
    pub token: TokenId,
    /// Its log probability, if the request asks.
    pub logprobs: Option<TokenLogprobs>,
}

/// Chooses tokens; holds scratch that is reused from row to row and request to request.
#[derive(Debug, Default)]
pub struct Sampler {
    /// The row that is reported: logits, or weights that tokens are drawn by.
    told: Vec<f32>,
    /// Its log probabilities, and the number of top tokens to report; `None` when none are
    /// reported.
    told_row: Option<(Row, usize)>,
    /// Weights in id order.
    weights: Vec<f32>,
    /// Sums of `BLOCK` weights each.
    block_sums: Vec<f64>,
    /// Selected logits, largest first unless a stage has another order.
    keys: Vec<u64>,
    /// Their weights.
    kept: Vec<f32>,
    /// Of the stages.
    scratch: Vec<u64>,
    /// Their ids, for a caller that draws from them itself.
    ids: Vec<TokenId>,
}

/// The log probabilities of a row of logits or of weights.
#[derive(Debug)]
enum Row {
    Logits(RawRow),
    Drawn(DrawnRow),
}

/// The tokens that a row leaves to draw from, and where their weights lie.
enum Left {
    /// One token.
    One(usize),
    /// Every positive one of `weights`, which sum to this.
    All(f64),
    /// Some, `kept`, which sum to this.
    Few(f64),
}

impl Sampler {
    /// Creates a sampler without scratch; it grows to the vocabulary on first use.
    pub fn new() -> Self {
        Self::default()
    }

    /// Chooses the output token at position `n_generated` from `logits`, which the processors
    /// change in place.
    ///
    /// The state does not learn which token was chosen: call [`SamplerState::accepted`] with the
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
        let id = match self.shape(state, logits, n_generated) {
            Left::One(id) => id,
            Left::All(total) => {
                let target = state.rng.uniform(n_generated as u64) * total;
                invert_blocks(&self.weights, self.block_sums.iter().copied(), target)
            }
            Left::Few(total) => {
                let target = state.rng.uniform(n_generated as u64) * total;
                select::id_of(self.keys[invert(&self.kept, target).0])
            }
        };
        let token = TokenId(id as u32);
        Sampled { token, logprobs: self.logprobs(token) }
    }

    /// The distribution that [`sample`](Self::sample) would draw from: one token when the request
    /// is greedy, and when nothing is possible token 0.
    ///
    /// The processors change `logits` in place and do not learn which token was chosen.
    ///
    /// # Shapes
    ///
    /// `logits`: `[vocab]`; an empty row leaves token 0.
    pub fn distribution(
        &mut self,
        state: &mut SamplerState,
        logits: &mut [f32],
        n_generated: usize,
    ) -> Distribution<'_> {
        let left = self.shape(state, logits, n_generated);
        let n_vocab = logits.len();
        self.ids.clear();
        self.ids.reserve(self.kept.capacity());
        let total = match left {
            Left::All(total) => {
                return Distribution { ids: None, weights: &self.weights, total, n_vocab };
            }
            Left::Few(total) => {
                let keys = self.keys.iter().take(self.kept.len());
                self.ids.extend(keys.map(|&key| TokenId(select::id_of(key) as u32)));
                total
            }
            Left::One(id) => {
                self.ids.push(TokenId(id as u32));
                self.kept.clear();
                self.kept.push(1.0);
                1.0
            }
        };
        Distribution { ids: Some(&self.ids), weights: &self.kept, total, n_vocab }
    }

    /// The log probability of `token` in the row that was last sampled from or asked for its
    /// distribution; `None` if its request does not ask.
    pub fn logprobs(&mut self, token: TokenId) -> Option<TokenLogprobs> {
        let (row, n_top) = self.told_row.as_ref()?;
        let own = self.told.get(token.0 as usize).copied();
        let (logprob, top) = match row {
            Row::Logits(row) => (
                row.logprob(own.unwrap_or(f32::NEG_INFINITY)),
                row.top(&self.told, *n_top, &mut self.keys),
            ),
            Row::Drawn(row) => {
                (row.logprob(own.unwrap_or(0.0)), row.top(&self.told, *n_top, &mut self.keys))
            }
        };
        Some(TokenLogprobs { token, logprob, top })
    }

    /// Keeps a row of logits to be reported.
    fn tell_logits(&mut self, logits: &[f32], n_top: usize) {
        self.told.clear();
        self.told.extend_from_slice(logits);
        self.told_row = Some((Row::Logits(RawRow::new(logits, &mut self.weights)), n_top));
    }

    /// Keeps the weights of what is left to be reported.
    fn tell_left(&mut self, left: &Left, n_vocab: usize, n_top: usize) {
        let total = match left {
            Left::One(_) => 0.0,
            Left::All(total) | Left::Few(total) => *total,
        };
        self.told.clear();
        if let Left::All(_) = left {
            self.told.extend_from_slice(&self.weights);
        }
        self.told.resize(n_vocab, 0.0);
        if let Left::Few(_) = left {
            for (key, weight) in self.keys.iter().zip(&self.kept) {
                self.told[select::id_of(*key)] = *weight;
            }
        }
        self.told_row = Some((Row::Drawn(DrawnRow::new(total)), n_top));
    }

    /// Applies the processors and weighs the tokens that they leave, and keeps what is reported.
    fn shape(&mut self, state: &mut SamplerState, logits: &mut [f32], n_generated: usize) -> Left {
        self.told_row = None;
        let told = state.logprobs.map(|n_top| (state.logprobs_mode, n_top));
        if let Some((LogprobsMode::Raw, n_top)) = told {
            self.tell_logits(logits, n_top);
        }
        let left = self.leave(state, logits, n_generated);
        match told {
            // A greedy token is not drawn, so there are no weights.
            Some((LogprobsMode::Processed, n_top)) if state.plan.temperature == 0.0 => {
                self.tell_logits(logits, n_top);
            }
            Some((LogprobsMode::Processed, n_top)) => self.tell_left(&left, logits.len(), n_top),
            Some((LogprobsMode::Raw, _)) | None => {}
        }
        left
    }

    /// Applies the processors and weighs the tokens that they leave.
    fn leave(&mut self, state: &mut SamplerState, logits: &mut [f32], n_generated: usize) -> Left {
        let is_greedy = state.plan.temperature == 0.0;
        let row = RowContext { n_generated };
        for processor in &mut state.processors {
            if !(is_greedy && processor.preserves_argmax()) {
                processor.apply(&row, logits);
            }
        }
        if let Some(rule) = &mut state.rule {
            rule.apply(logits);
        }
        if is_greedy {
            return Left::One(argmax(logits));
        }
        let SamplerState { plan, mirostat, rng, .. } = state;
        if let Some(staged) = &plan.staged {
            let chance = || rng.uniform_of(Stream::Exclude, n_generated as u64, 0);
            let excludes = || chance() < f64::from(staged.xtc.probability);
            return self.keep_staged(plan, staged, logits, |candidates| {
                plan.run(staged, candidates, excludes);
                if let Some(mirostat) = mirostat {
                    mirostat.cut(candidates);
                }
            });
        }
        if plan.top_k == 0 && plan.top_p >= 1.0 {
            let total = self.weigh_all(logits, plan.temperature, plan.min_p);
            return if total > 0.0 { Left::All(total) } else { Left::One(0) };
        }
        self.keep_few(plan, logits);
        let total = total(&self.kept);
        match self.keys.first() {
            Some(_) if total > 0.0 => Left::Few(total),
            first => Left::One(first.map_or(0, |&key| select::id_of(key))),
        }
    }

    /// Keeps what the stages leave.
    fn keep_staged(
        &mut self,
        plan: &Plan,
        staged: &Staged,
        logits: &[f32],
        run: impl FnOnce(&mut Candidates<'_>),
    ) -> Left {
        let Self { keys, scratch, kept, .. } = self;
        let first_k = plan.first_k(staged);
        let mut candidates =
            Candidates::new(logits, first_k, staged.min_keep, [keys, scratch], kept);
        run(&mut candidates);
        let total = candidates.weigh();
        if total > 0.0 { Left::Few(total) } else { Left::One(0) }
    }

    /// Keeps the largest weights: at most `top_k`, then as many as reach `top_p`, then all above
    /// `min_p`.
    fn keep_few(&mut self, plan: &Plan, logits: &[f32]) {
        let Plan { temperature, top_k, top_p, min_p, .. } = *plan;
        // Room for as many as there can be, however few there are this time.
        let n_most = if top_k > 0 { top_k.min(logits.len()) } else { logits.len() };
        self.kept.clear();
        self.kept.reserve(n_most);
        if top_k > 0 {
            select::largest(logits, top_k, &mut self.keys);
            let logit = |key: u64| tame(logits[select::id_of(key)]);
            let max = self.keys.first().map_or(0.0, |&key| logit(key));
            let weight = |&key: &u64| exp_nonpositive((logit(key) - max) / temperature);
            self.kept.extend(self.keys.iter().map(weight));
            if top_p < 1.0 {
                let target = f64::from(top_p) * total(&self.kept);
                self.kept.truncate(reach(self.kept.iter().copied(), &mut 0.0, target));
            }
        } else {
            let total = self.weigh_all(logits, temperature, 0.0);
            let target = f64::from(top_p) * total;
            for n in [LIKELY_CANDIDATES.min(logits.len()), logits.len()] {
                // Half of the bound, so that rounding cannot make it too high.
                let bound = 0.5 * (1.0 - f64::from(top_p)) * total / n as f64;
                let least = (bound as f32).max(f32::MIN_POSITIVE);
                select::at_least(logits, &self.weights, least, &mut self.keys);
                let weight = |&key: &u64| f64::from(self.weights[select::id_of(key)]);
                if self.keys.iter().map(weight).sum::<f64>() >= target {
                    break;
                }
            }
            self.keep_until(target);
        }
        if min_p > 0.0 {
            let n_kept = self.kept.partition_point(|&weight| weight >= min_p);
            self.kept.truncate(n_kept.max(1));
        }
    }

    /// Sorts the candidates, largest first, until the weights of the sorted reach `target`; these
    /// are kept.
    fn keep_until(&mut self, target: f64) {
        let Self { keys, weights, kept, .. } = self;
        let (mut rest, mut n_next, mut sum) = (&mut keys[..], FIRST_SORTED, 0.0);
        while (kept.is_empty() || sum < target) && !rest.is_empty() {
            let n_sorted = n_next.min(rest.len());
            select::sort_largest(rest, n_sorted);
            let (sorted, others) = rest.split_at_mut(n_sorted);
            let sorted = sorted.iter().map(|&key| weights[select::id_of(key)]);
            kept.extend(sorted.clone().take(reach(sorted, &mut sum, target)));
            (rest, n_next) = (others, n_next.saturating_mul(4));
        }
    }

    /// Fills `weights` with `exp((l - max) / temperature)`, or 0 where that is below `least`, and
    /// `block_sums` with their sums; returns the total. All zero when nothing is possible.
    fn weigh_all(&mut self, logits: &[f32], temperature: f32, least: f32) -> f64 {
        let max = max(logits);
        self.weights.resize(logits.len(), 0.0);
        self.block_sums.clear();
        for (logits, weights) in logits.chunks(BLOCK).zip(self.weights.chunks_mut(BLOCK)) {
            for (weight, &logit) in weights.iter_mut().zip(logits) {
                let w = exp_nonpositive((tame(logit) - max) / temperature);
                *weight = if w < least { 0.0 } else { w };
            }
            self.block_sums.push(sum(weights));
        }
        self.block_sums.iter().sum()
    }
}

/// Sum in the order given.
fn total(weights: &[f32]) -> f64 {
    weights.iter().map(|&weight| f64::from(weight)).sum()
}

/// Adds weights to `sum` until it reaches `target`; returns how many.
fn reach(weights: impl Iterator<Item = f32>, sum: &mut f64, target: f64) -> usize {
    let mut n = 0;
    for weight in weights {
        *sum += f64::from(weight);
        n += 1;
        if *sum >= target {
            break;
        }
    }
    n
}
