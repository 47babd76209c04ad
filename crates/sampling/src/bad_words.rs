//! Bad words as a processor: sequences of tokens that an answer cannot contain.
//!
//! ```text
//! bad words   [a b c]  [d]
//! output      ... x a b          c and d are impossible
//!             ... x a            d is impossible
//! ```
//!
//! The last token of a word is masked where the tokens before it end the output. Words that began
//! in the prompt do not count, as in vLLM: `bad_words` is about the answer.

use crate::{LogitsProcessor, RowContext};
use pelton_base::TokenId;
use std::sync::Arc;

/// Rules out the tokens that would complete a bad word.
#[derive(Clone, Debug)]
pub struct BadWords {
    /// None is empty.
    words: Arc<[Vec<TokenId>]>,
    /// The latest output tokens, as many as a word can have before its last.
    latest: Vec<TokenId>,
    n_latest: usize,
}

impl BadWords {
    /// Rules out these sequences; empty ones are ignored.
    pub fn new(words: &[Vec<TokenId>]) -> Self {
        let words: Arc<[_]> = words.iter().filter(|word| !word.is_empty()).cloned().collect();
        let n_latest = words.iter().map(|word| word.len() - 1).max().unwrap_or(0);
        Self { words, latest: Vec::with_capacity(n_latest), n_latest }
    }
}

impl LogitsProcessor for BadWords {
    fn apply(&mut self, _row: &RowContext, logits: &mut [f32]) {
        for word in self.words.iter() {
            if let Some((last, before)) = word.split_last()
                && self.latest.ends_with(before)
                && let Some(logit) = logits.get_mut(last.0 as usize)
            {
                *logit = f32::NEG_INFINITY;
            }
        }
    }

    fn accepted(&mut self, token: TokenId) {
        if self.n_latest == 0 {
            return;
        }
        if self.latest.len() == self.n_latest {
            self.latest.remove(0);
        }
        self.latest.push(token);
    }

    fn reserve(&mut self, _n_tokens: usize) {}

    fn preserves_argmax(&self) -> bool {
        self.words.is_empty()
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
        fn a_token_is_masked_exactly_where_it_would_complete_a_word(
            words in prop::collection::vec(prop::collection::vec(0..4_u32, 0..4), 0..6),
            output in prop::collection::vec(0..4_u32, 0..10),
        ) {
            let tokens = |ids: &Vec<u32>| ids.iter().copied().map(TokenId).collect::<Vec<_>>();
            let mut processor = BadWords::new(&words.iter().map(tokens).collect::<Vec<_>>());
            output.iter().for_each(|&token| processor.accepted(TokenId(token)));
            let mut logits = [0.0; 4];
            processor.apply(&RowContext { n_generated: output.len() }, &mut logits);
            for (id, &logit) in (0..).zip(&logits) {
                let longer = [&output[..], &[id]].concat();
                let completes = |word: &Vec<u32>| !word.is_empty() && longer.ends_with(word);
                let is_masked = words.iter().any(completes);
                prop_assert_eq!(logit == f32::NEG_INFINITY, is_masked, "token {}", id);
            }
        }
    }
}
