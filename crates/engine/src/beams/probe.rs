//! The look at a beam's logits: its candidates are noted, and no logit is changed.
//!
//! A probe is a processor of a led request. The engine thread runs it while it samples and reads the
//! notes when the step is over, so the lock is never waited for.
//!
//! Tokens are ruled out before the candidates are chosen: those that the rule of the answer forbids,
//! those that are not among `allowed_tokens`, those that the model suppresses, and stop tokens before
//! `min_tokens`. The log
//! probabilities of the others stay the model's own.

use pelton_base::{Ask, RuleState, SuppressedTokens, TokenId, TokenSet};
use pelton_sampling::{Candidates, LogitsProcessor, RowContext};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Data that the beams of one search share.
#[derive(Debug)]
pub(crate) struct Lens {
    /// Candidates of each beam.
    n: usize,
    min_tokens: usize,
    ends: Vec<TokenId>,
    /// `None` for all tokens.
    allowed: Option<Vec<TokenId>>,
    suppressed: SuppressedTokens,
    scratch: Mutex<Scratch>,
}

#[derive(Debug, Default)]
struct Scratch {
    finder: Candidates,
    masked: Vec<f32>,
    set: TokenSet,
}

/// The notes of one beam.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// How far the answer has come in its rule, where it has one.
    pub(crate) rule: Option<Box<dyn RuleState>>,
    /// The candidates of the last look; `None` when there was none since they were taken.
    pub(crate) candidates: Option<Vec<(TokenId, f32)>>,
}

/// Looks at the logits of one beam.
#[derive(Debug)]
pub(crate) struct Probe {
    lens: Arc<Lens>,
    notes: Arc<Mutex<Notes>>,
}

/// A panic leaves scratch or the notes of a search that ends with it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lens {
    /// The view of a search of `width` beams.
    pub(crate) fn new(ask: &Ask, width: usize) -> Self {
        Self {
            n: 2 * width,
            min_tokens: ask.sampling.min_tokens,
            ends: ask.stop_tokens.clone(),
            allowed: ask.sampling.allowed_tokens.clone(),
            suppressed: ask.sampling.suppressed.clone(),
            scratch: Mutex::default(),
        }
    }

    fn look(&self, notes: &mut Notes, n_generated: usize, logits: &[f32]) {
        let Scratch { finder, masked, set } = &mut *lock(&self.scratch);
        let is_early = n_generated < self.min_tokens && !self.ends.is_empty();
        let candidates = notes.candidates.get_or_insert_default();
        let is_free = notes.rule.is_none() && self.allowed.is_none() && self.suppressed.is_empty();
        if is_free && !is_early {
            return finder.find(logits, logits, self.n, candidates);
        }
        masked.clear();
        masked.extend_from_slice(logits);
        if let Some(rule) = &mut notes.rule {
            set.clear(logits.len());
            rule.allow(set);
            keep(masked, set);
        }
        if let Some(allowed) = &self.allowed {
            set.clear(logits.len());
            allowed.iter().for_each(|&token| set.insert(token));
            keep(masked, set);
        }
        let ends = self.ends.iter().copied().filter(|_| is_early);
        for token in ends.chain(self.suppressed.at(n_generated)) {
            if let Some(logit) = masked.get_mut(token.0 as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
        finder.find(logits, masked, self.n, candidates);
    }
}

/// Rules out the tokens that are not in a set.
fn keep(logits: &mut [f32], set: &TokenSet) {
    for (word, logits) in set.words().iter().zip(logits.chunks_mut(64)) {
        for (bit, logit) in logits.iter_mut().enumerate() {
            if word >> bit & 1 == 0 {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
}

impl Probe {
    pub(crate) fn new(lens: &Arc<Lens>, notes: &Arc<Mutex<Notes>>) -> Self {
        Self { lens: Arc::clone(lens), notes: Arc::clone(notes) }
    }
}

impl LogitsProcessor for Probe {
    fn apply(&mut self, row: &RowContext, logits: &mut [f32]) {
        self.lens.look(&mut lock(&self.notes), row.n_generated, logits);
    }

    /// Nothing: a beam goes on with a token that the search chooses.
    fn accepted(&mut self, _token: TokenId) {}

    fn reserve(&mut self, _n_tokens: usize) {}

    /// The logits are changed by nothing, but they are needed.
    fn preserves_argmax(&self) -> bool {
        false
    }

    /// A probe with notes of its own, which nothing reads.
    fn fork(&self) -> Box<dyn LogitsProcessor> {
        let notes = lock(&self.notes);
        let rule = notes.rule.as_ref().map(|rule| rule.fork());
        let apart = Arc::new(Mutex::new(Notes { rule, candidates: None }));
        Box::new(Self::new(&self.lens, &apart))
    }
}
