//! The bookkeeping of a beam search: candidates in, next beams out. It knows no model and no KV.
//!
//! ```text
//! live     beam 0  -0.9 ─┬─ "cat" -0.2 ─▶ -1.1 ─▶ beam 0          the best `width` sums go on
//!                        └─ end   -0.4 ─▶ -1.3 ─▶ done             whatever ends is done
//!          beam 1  -1.0 ─┬─ "cat" -0.3 ─▶ -1.3 ─▶ beam 1
//!                        └─ "dog" -2.0 ─▶ -3.0                     dropped
//! ```
//!
//! The answers share their tokens as paths to one root, because beams branch from each other:
//!
//! ```text
//! nodes    "the" ◀─┬─ "cat" ◀── "sat"      a beam is its last node
//!                  └─ "dog"
//! ```
//!
//! Sums are kept in 64 bits over log probabilities of 32, in the order of the tokens, so that they do
//! not depend on when a beam was computed.

use crate::beams::{Beam, BeamParams, EarlyStopping};
use pelton_base::{FinishReason, TokenId};
use std::cmp::Ordering;
use std::sync::Arc;

/// Likeliest tokens of a position, for reports.
pub(crate) type Top = Option<Arc<[(TokenId, f32)]>>;

/// The view of one live beam on its next token.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Tokens that may come next, with their log probabilities, in any order, each once.
    pub(crate) candidates: Vec<(TokenId, f32)>,
    /// Likeliest tokens here, for reports.
    pub(crate) top: Top,
}

/// A beam of the next step.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Child {
    /// Index of the live beam that it goes on from.
    pub(crate) parent: usize,
    /// The token that it goes on with.
    pub(crate) token: TokenId,
}

/// The bounds of a search beside its parameters.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    /// Tokens of the prompt; at least one.
    pub(crate) n_prompt: usize,
    /// Most tokens of an answer; at least one.
    pub(crate) n_most: usize,
    /// Tokens that end an answer.
    pub(crate) ends: Vec<TokenId>,
}

/// A beam search between two steps.
#[derive(Debug)]
pub(crate) struct BeamSearch {
    params: BeamParams,
    bounds: Bounds,
    nodes: Vec<Node>,
    /// The best first.
    live: Vec<Live>,
    /// Tokens of each live beam.
    n_tokens: usize,
    /// At most `width`, the best first.
    done: Vec<Done>,
}

#[derive(Debug)]
struct Node {
    /// `None` at the first token.
    parent: Option<u32>,
    token: TokenId,
    logprob: f32,
    top: Top,
}

#[derive(Clone, Copy, Debug)]
struct Live {
    /// `None` before the first token.
    node: Option<u32>,
    sum: f64,
}

#[derive(Debug)]
struct Done {
    node: u32,
    sum: f64,
    score: f64,
    finish: FinishReason,
}

/// A live beam with one more token.
#[derive(Clone, Copy, Debug)]
struct Path {
    sum: f64,
    token: TokenId,
    beam: usize,
    logprob: f32,
}

impl Path {
    /// The larger sum first, then the lower token, then the lower beam.
    fn order(&self, other: &Self) -> Ordering {
        let ties = (self.token, self.beam).cmp(&(other.token, other.beam));
        other.sum.total_cmp(&self.sum).then(ties)
    }
}

impl BeamSearch {
    /// A search whose one live beam is the prompt.
    pub(crate) fn new(params: BeamParams, bounds: Bounds) -> Self {
        let live = vec![Live { node: None, sum: 0.0 }];
        Self { params, bounds, nodes: Vec::new(), live, n_tokens: 0, done: Vec::new() }
    }

    /// Takes a step: `seen` of each live beam, in order. Returns the next live beams, the best first;
    /// none when the search is over.
    pub(crate) fn advance(&mut self, seen: &[Seen]) -> Vec<Child> {
        assert_eq!(seen.len(), self.live.len(), "each live beam looks ahead once");
        self.n_tokens += 1;
        let (ended, mut next) = self.paths(seen);
        for path in ended {
            self.finish(path, seen, FinishReason::Stop);
        }
        next.truncate(self.params.width);
        if self.n_tokens == self.bounds.n_most {
            for path in next.drain(..) {
                self.finish(path, seen, FinishReason::Length);
            }
        }
        let live =
            next.iter().map(|path| Live { node: Some(self.push(path, seen)), sum: path.sum });
        self.live = live.collect();
        if self.is_over() {
            self.live.clear();
        }
        let children = next.iter().take(self.live.len());
        children.map(|path| Child { parent: path.beam, token: path.token }).collect()
    }

    /// Tokens of each live beam.
    pub(crate) fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// The best answers so far, at most `n`, the best first.
    pub(crate) fn answers(&self) -> Vec<Beam> {
        self.done.iter().take(self.params.n).map(|done| self.answer(done)).collect()
    }

    /// The candidates that end an answer and those that go on, each in order.
    fn paths(&self, seen: &[Seen]) -> (Vec<Path>, Vec<Path>) {
        let (mut ended, mut next) = (Vec::new(), Vec::new());
        for (beam, (live, seen)) in self.live.iter().zip(seen).enumerate() {
            for &(token, logprob) in &seen.candidates {
                if !logprob.is_finite() {
                    continue;
                }
                let path = Path { sum: live.sum + f64::from(logprob), token, beam, logprob };
                let ends = self.bounds.ends.contains(&token);
                (if ends { &mut ended } else { &mut next }).push(path);
            }
        }
        ended.sort_unstable_by(Path::order);
        next.sort_unstable_by(Path::order);
        (ended, next)
    }

    /// Adds the last token of a path and returns its node.
    fn push(&mut self, path: &Path, seen: &[Seen]) -> u32 {
        let (parent, top) = (self.live[path.beam].node, seen[path.beam].top.clone());
        self.nodes.push(Node { parent, token: path.token, logprob: path.logprob, top });
        u32::try_from(self.nodes.len() - 1).expect("invariant: KV has fewer than 2^32 slots")
    }

    /// Keeps an answer if it is among the best `width`; earlier ones go first among equals.
    fn finish(&mut self, path: Path, seen: &[Seen], finish: FinishReason) {
        // The token that stops an answer is not counted.
        let n_counted = self.n_tokens - usize::from(finish == FinishReason::Stop);
        let score = self.score(path.sum, n_counted);
        let at = self.done.partition_point(|done| done.score >= score);
        if at < self.params.width {
            let node = self.push(&path, seen);
            self.done.insert(at, Done { node, sum: path.sum, score, finish });
            self.done.truncate(self.params.width);
        }
    }

    /// The score of an answer of `n_counted` tokens.
    fn score(&self, sum: f64, n_counted: usize) -> f64 {
        let length = (self.bounds.n_prompt + n_counted) as f64;
        sum / length.powf(self.params.length_penalty)
    }

    fn is_over(&self) -> bool {
        let Some(best) = self.live.first() else { return true };
        let Some(worst) = self.done.last().filter(|_| self.done.len() == self.params.width) else {
            return false;
        };
        match self.params.early_stopping {
            EarlyStopping::Always => true,
            EarlyStopping::Heuristic => worst.score >= self.score(best.sum, self.n_tokens),
            // Sums only fall. The length that is best for a beam is the longest where length is
            // rewarded, else the shortest: the next token stops it and is not counted.
            EarlyStopping::Never => {
                let rewards_length = self.params.length_penalty > 0.0;
                let n_best = if rewards_length { self.bounds.n_most } else { self.n_tokens };
                worst.score >= self.score(best.sum, n_best)
            }
        }
    }

    fn answer(&self, done: &Done) -> Beam {
        let (mut tokens, mut logprobs, mut at) = (Vec::new(), Vec::new(), Some(done.node));
        while let Some(idx) = at {
            let Node { parent, token, logprob, top } = &self.nodes[idx as usize];
            tokens.push(*token);
            let top = top.as_deref().unwrap_or_default().to_vec();
            logprobs.push(pelton_sampling::TokenLogprobs { token: *token, logprob: *logprob, top });
            at = *parent;
        }
        tokens.reverse();
        logprobs.reverse();
        let Done { sum, score, finish, .. } = *done;
        Beam { tokens, logprobs, cumulative_logprob: sum, score, finish }
    }
}

#[cfg(test)]
mod tests;
