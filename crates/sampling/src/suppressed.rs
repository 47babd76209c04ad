//! Tokens that a model's authors forbid, as a processor: they become impossible.
//!
//! The mask is a function of the position, as that of [`MinTokens`](crate::MinTokens) is, so the row of a
//! draft is masked as plain decoding masks its place. Where a token is forbidden everywhere, no greedy
//! row may skip the processor: the likeliest token of the model may be one of these. It comes after bias
//! and penalties, so that neither can bring a token back.

use crate::{LogitsProcessor, RowContext};
use pelton_base::{SuppressedTokens, TokenId};

/// Rules out the tokens that a model never samples.
#[derive(Clone, Debug)]
pub struct Suppressed {
    tokens: SuppressedTokens,
    has_begun: bool,
}

impl Suppressed {
    /// Rules out these tokens; ids beyond the vocabulary are ignored.
    pub fn new(tokens: SuppressedTokens) -> Self {
        Self { tokens, has_begun: false }
    }
}

impl LogitsProcessor for Suppressed {
    fn apply(&mut self, row: &RowContext, logits: &mut [f32]) {
        for token in self.tokens.at(row.n_generated) {
            if let Some(logit) = logits.get_mut(token.0 as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }

    fn accepted(&mut self, _token: TokenId) {
        self.has_begun = true;
    }

    fn reserve(&mut self, _n_tokens: usize) {}

    fn preserves_argmax(&self) -> bool {
        self.tokens.always.is_empty() && (self.has_begun || self.tokens.first.is_empty())
    }

    fn fork(&self) -> Box<dyn LogitsProcessor> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(suppressed: &mut Suppressed, n_generated: usize) -> Vec<usize> {
        let mut logits = [0.0; 4];
        suppressed.apply(&RowContext { n_generated }, &mut logits);
        (0..4).filter(|i| logits[*i] == f32::NEG_INFINITY).collect()
    }

    fn tokens(always: &[u32], first: &[u32]) -> SuppressedTokens {
        let ids = |ids: &[u32]| ids.iter().map(|id| TokenId(*id)).collect();
        SuppressedTokens { always: ids(always), first: ids(first) }
    }

    #[test]
    fn some_tokens_never_come_and_others_not_first() {
        let mut suppressed = Suppressed::new(tokens(&[1, 9], &[2]));
        assert_eq!(masked(&mut suppressed, 0), [1, 2]);
        suppressed.accepted(TokenId(0));
        assert_eq!(masked(&mut suppressed, 1), [1]);
        assert!(!suppressed.preserves_argmax());
    }

    #[test]
    fn greedy_rows_need_no_logits_once_no_token_is_forbidden() {
        let mut suppressed = Suppressed::new(tokens(&[], &[2]));
        assert!(!suppressed.preserves_argmax());
        suppressed.accepted(TokenId(0));
        assert!(suppressed.preserves_argmax() && masked(&mut suppressed, 1).is_empty());
    }
}
