//! Allowed tokens as a processor: every other token becomes impossible.

use crate::{LogitsProcessor, RowContext};
use pelton_base::TokenId;
use std::sync::Arc;

/// Rules out all tokens but a few.
///
/// An end token that is not among them is ruled out too, so the answer ends at its length.
#[derive(Clone, Debug)]
pub struct Allowed {
    /// Sorted, each once.
    tokens: Arc<[TokenId]>,
}

impl Allowed {
    /// Allows these tokens, in any order; ids beyond the vocabulary are ignored.
    pub fn new(tokens: &[TokenId]) -> Self {
        let mut tokens = tokens.to_vec();
        tokens.sort_unstable();
        tokens.dedup();
        Self { tokens: tokens.into() }
    }
}

impl LogitsProcessor for Allowed {
    fn apply(&mut self, _row: &RowContext, logits: &mut [f32]) {
        let mut next = 0;
        for token in self.tokens.iter().map(|token| token.0 as usize) {
            let end = token.min(logits.len());
            logits[next..end].fill(f32::NEG_INFINITY);
            if end < token {
                return;
            }
            next = (token + 1).min(logits.len());
        }
        logits[next..].fill(f32::NEG_INFINITY);
    }

    fn accepted(&mut self, _token: TokenId) {}

    fn reserve(&mut self, _n_tokens: usize) {}

    fn preserves_argmax(&self) -> bool {
        false
    }

    fn fork(&self) -> Box<dyn LogitsProcessor> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_allowed_keep_their_logits_and_no_other_does(
            allowed in prop::collection::vec(0..40_u32, 0..20),
            n_vocab in 0..30_usize,
        ) {
            let tokens: Vec<TokenId> = allowed.iter().copied().map(TokenId).collect();
            let mut logits = vec![1.5; n_vocab];
            Allowed::new(&tokens).apply(&RowContext { n_generated: 0 }, &mut logits);
            for (id, &logit) in (0..).zip(&logits) {
                let expected = if allowed.contains(&id) { 1.5 } else { f32::NEG_INFINITY };
                prop_assert_eq!(logit, expected, "token {}", id);
            }
        }
    }
}
