//! A rule as a processor: tokens that may not come next become impossible.

use crate::{LogitsProcessor, RowContext};
use pelton_base::{RuleState, TokenId, TokenSet};

/// Masks every row by the state of a rule.
#[derive(Debug)]
pub struct Masked {
    state: Box<dyn RuleState>,
    allowed: TokenSet,
}

impl Masked {
    /// Masks from this state of a rule on.
    pub fn new(state: Box<dyn RuleState>) -> Self {
        Self { state, allowed: TokenSet::default() }
    }
}

impl LogitsProcessor for Masked {
    fn apply(&mut self, _row: &RowContext, logits: &mut [f32]) {
        self.allowed.clear(logits.len());
        self.state.allow(&mut self.allowed);
        for (id, logit) in logits.iter_mut().enumerate() {
            if !self.allowed.contains(TokenId(id as u32)) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }

    fn accepted(&mut self, token: TokenId) {
        // A forbidden token is chosen only where the rule allows none; its logit shows that.
        self.state.accept(token);
    }

    fn reserve(&mut self, _n_tokens: usize) {}

    fn preserves_argmax(&self) -> bool {
        false
    }

    fn fork(&self) -> Box<dyn LogitsProcessor> {
        Box::new(Self { state: self.state.fork(), allowed: TokenSet::default() })
    }
}
