//! The least length of an answer as a processor: stop tokens are impossible until it is reached.
//!
//! ```text
//! min_tokens = 3     tokens before this one    0   1   2   3   4
//!                    stop tokens               -inf         as the model says
//! ```
//!
//! **The mask is a function of the position**, not of the tokens that were accepted: the row of a
//! draft stands as many places further on as there are drafts before it on its path, and is masked
//! as plain decoding masks that place. So verification needs no knowledge of it.
//!
//! Accepted tokens are counted for [`preserves_argmax`](LogitsProcessor::preserves_argmax) alone,
//! which is asked before there is a row: `false` until `min_tokens` tokens were accepted, then
//! `true`, and greedy rows skip the processor. The answer is for the first row of a draft; where
//! that skips the processor, later rows do too.
//!
//! It comes after bias and penalties, so that neither can bring a stop token back. Where every
//! possible token would end the answer, every logit is minus infinity, as where a
//! [`Masked`](crate::Masked) rule allows no token.

use crate::{LogitsProcessor, RowContext};
use pelton_base::TokenId;

/// Rules out the tokens that end an answer until it is long enough.
#[derive(Clone, Debug)]
pub struct MinTokens {
    min_tokens: usize,
    ends: Vec<TokenId>,
    n_accepted: usize,
}

impl MinTokens {
    /// Rules out each of `ends` before `min_tokens` tokens; ids beyond the vocabulary are ignored.
    pub fn new(min_tokens: usize, ends: Vec<TokenId>) -> Self {
        Self { min_tokens, ends, n_accepted: 0 }
    }
}

impl LogitsProcessor for MinTokens {
    fn apply(&mut self, row: &RowContext, logits: &mut [f32]) {
        if row.n_generated >= self.min_tokens {
            return;
        }
        for end in &self.ends {
            if let Some(logit) = logits.get_mut(end.0 as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }

    fn accepted(&mut self, _token: TokenId) {
        self.n_accepted += 1;
    }

    fn reserve(&mut self, _n_tokens: usize) {}

    fn preserves_argmax(&self) -> bool {
        self.n_accepted >= self.min_tokens || self.ends.is_empty()
    }

    fn fork(&self) -> Box<dyn LogitsProcessor> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(processor: &mut dyn LogitsProcessor, n_generated: usize) -> [bool; 4] {
        let mut logits = [1.0, f32::NAN, f32::INFINITY, -1.0];
        processor.apply(&RowContext { n_generated }, &mut logits);
        logits.map(|logit| logit == f32::NEG_INFINITY)
    }

    #[test]
    fn ends_are_ruled_out_by_the_position_whatever_was_accepted() {
        let ends = [1, 2, 4, u32::MAX].map(TokenId).to_vec();
        let mut processor = MinTokens::new(3, ends);
        for _ in 0..5 {
            for n_generated in 0..3 {
                assert_eq!(masked(&mut processor, n_generated), [false, true, true, false]);
            }
            for n_generated in [3, 4, usize::MAX] {
                assert_eq!(masked(&mut processor, n_generated), [false; 4]);
            }
            processor.accepted(TokenId(0));
        }
    }

    #[test]
    fn greedy_rows_are_free_of_it_from_where_it_asks_for_nothing() {
        let mut processor = MinTokens::new(2, vec![TokenId(1)]);
        assert!(!processor.preserves_argmax());
        processor.accepted(TokenId(0));
        let mut fork = processor.fork();
        fork.accepted(TokenId(0));
        assert!(!processor.preserves_argmax() && fork.preserves_argmax());
        assert!(MinTokens::new(0, vec![TokenId(1)]).preserves_argmax());
        assert!(MinTokens::new(9, Vec::new()).preserves_argmax());
    }
}
