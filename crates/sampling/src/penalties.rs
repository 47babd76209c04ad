//! Penalties for tokens that were seen: repetition, presence, frequency.
//!
//! ```text
//! repeat_last_n = 4        prompt          output
//!                     a  b  c  a  |  d  c  c
//! counted                      a     d  c  c     a, c, d repeat; c comes twice in the output
//! ```
//!
//! Without a window every token of prompt and output counts. llama.cpp counts the tokens of the
//! prompt for presence and frequency too; here these look at the output alone, as vLLM's do.
//!
//! Paper: Keskar et al., "CTRL: A Conditional Transformer Language Model", 2019, §4.1 (repetition).

use crate::{LogitsProcessor, RowContext};
use pelton_base::TokenId;
use std::collections::VecDeque;

/// Makes tokens that were seen less likely (or more, with the opposite sign).
///
/// Repetition looks at prompt and output, presence and frequency at the output alone; they apply
/// in this order to each token.
#[derive(Clone, Debug)]
pub struct Penalties {
    repetition: f32,
    presence: f32,
    frequency: f32,
    /// Every token seen, sorted by token.
    seen: Vec<Seen>,
    window: Option<Window>,
}

/// How often a token was seen, in the window if there is one.
#[derive(Clone, Copy, Debug)]
struct Seen {
    token: TokenId,
    n: u32,
    n_in_output: u32,
}

/// The latest tokens, the oldest first.
#[derive(Clone, Debug)]
struct Window {
    tokens: VecDeque<TokenId>,
    /// Tokens at its front that are of the prompt.
    n_prompt: usize,
    last_n: usize,
}

impl Penalties {
    /// Starts from the tokens of the prompt.
    ///
    /// `repetition` divides positive and multiplies negative logits; 1 is off. `presence` is
    /// subtracted once and `frequency` once per occurrence; 0 is off.
    pub fn new(repetition: f32, presence: f32, frequency: f32, prompt: &[TokenId]) -> Self {
        let mut tokens = prompt.to_vec();
        tokens.sort_unstable();
        let runs = tokens.chunk_by(|a, b| a == b);
        let seen = runs.map(|run| Seen { token: run[0], n: run.len() as u32, n_in_output: 0 });
        Self { repetition, presence, frequency, seen: seen.collect(), window: None }
    }

    /// Starts from the tokens of the prompt, and counts in the latest `last_n` tokens of prompt and
    /// output alone.
    pub fn of_latest(
        last_n: usize,
        [repetition, presence, frequency]: [f32; 3],
        prompt: &[TokenId],
    ) -> Self {
        let prompt = &prompt[prompt.len().saturating_sub(last_n)..];
        let mut tokens = VecDeque::with_capacity(last_n.min(prompt.len()) + 1);
        tokens.extend(prompt);
        let window = Window { tokens, n_prompt: prompt.len(), last_n };
        Self { window: Some(window), ..Self::new(repetition, presence, frequency, prompt) }
    }

    /// Forgets the oldest token where the window is full.
    fn forget(&mut self) {
        let Some(window) = self.window.as_mut() else { return };
        if window.tokens.len() <= window.last_n {
            return;
        }
        let Some(oldest) = window.tokens.pop_front() else { return };
        let was_in_output = window.n_prompt == 0;
        window.n_prompt = window.n_prompt.saturating_sub(1);
        if let Ok(idx) = self.seen.binary_search_by_key(&oldest, |seen| seen.token) {
            let seen = &mut self.seen[idx];
            seen.n -= 1;
            seen.n_in_output -= u32::from(was_in_output);
            if seen.n == 0 {
                self.seen.remove(idx);
            }
        }
    }
}

impl LogitsProcessor for Penalties {
    fn apply(&mut self, _row: &RowContext, logits: &mut [f32]) {
        for &Seen { token, n_in_output, .. } in &self.seen {
            let Some(logit) = logits.get_mut(token.0 as usize) else { continue };
            if *logit > 0.0 {
                *logit /= self.repetition;
            } else {
                *logit *= self.repetition;
            }
            if n_in_output > 0 {
                *logit -= self.presence;
                *logit -= self.frequency * n_in_output as f32;
            }
        }
    }

    fn accepted(&mut self, token: TokenId) {
        match self.seen.binary_search_by_key(&token, |seen| seen.token) {
            Ok(idx) => {
                self.seen[idx].n += 1;
                self.seen[idx].n_in_output += 1;
            }
            Err(idx) => self.seen.insert(idx, Seen { token, n: 1, n_in_output: 1 }),
        }
        if let Some(window) = &mut self.window {
            window.tokens.push_back(token);
            self.forget();
        }
    }

    fn reserve(&mut self, n_tokens: usize) {
        self.seen.reserve_exact(n_tokens);
        if let Some(Window { tokens, last_n, .. }) = &mut self.window {
            // One more, because a token comes before the oldest one goes.
            let n_most = last_n.saturating_add(1).min(tokens.len() + n_tokens);
            tokens.reserve(n_most.saturating_sub(tokens.len()));
        }
    }

    fn preserves_argmax(&self) -> bool {
        let is_empty = self.window.as_ref().is_some_and(|window| window.last_n == 0);
        is_empty || (self.repetition == 1.0 && self.presence == 0.0 && self.frequency == 0.0)
    }

    fn fork(&self) -> Box<dyn LogitsProcessor> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ROW: RowContext = RowContext { n_generated: 0 };

    #[test]
    fn repetition_counts_the_prompt_and_the_others_only_the_output() {
        let mut penalties = Penalties::new(2.0, 0.5, 0.25, &[TokenId(1), TokenId(2), TokenId(9)]);
        for token in [2, 3, 3] {
            penalties.accepted(TokenId(token));
        }
        let mut logits = [4.0, 4.0, 4.0, -4.0];
        penalties.apply(&ROW, &mut logits);
        assert_eq!(logits, [4.0, 2.0, 2.0 - 0.5 - 0.25, -8.0 - 0.5 - 0.5]);
    }

    proptest! {
        #[test]
        fn a_window_penalizes_as_a_count_of_its_tokens_does(
            prompt in prop::collection::vec(0..6_u32, 0..12),
            output in prop::collection::vec(0..6_u32, 0..12),
            last_n in 0..15_usize,
        ) {
            let prompt: Vec<TokenId> = prompt.into_iter().map(TokenId).collect();
            let mut penalties = Penalties::of_latest(last_n, [2.0, 0.5, 0.25], &prompt);
            penalties.reserve(output.len());
            output.iter().for_each(|&token| penalties.accepted(TokenId(token)));
            let mut logits = [8.0_f32; 6];
            penalties.apply(&ROW, &mut logits);
            let all: Vec<(u32, bool)> = prompt
                .iter()
                .map(|token| (token.0, false))
                .chain(output.iter().map(|&token| (token, true)))
                .collect();
            let latest = &all[all.len().saturating_sub(last_n)..];
            for (id, &logit) in (0..).zip(&logits) {
                let n = latest.iter().filter(|(token, _)| *token == id).count();
                let n_output = latest.iter().filter(|seen| **seen == (id, true)).count() as f32;
                let repeated = if n > 0 { 4.0 } else { 8.0 };
                let present = if n_output > 0.0 { 0.5 } else { 0.0 };
                prop_assert_eq!(logit, repeated - present - 0.25 * n_output);
            }
        }
    }

    #[test]
    fn penalties_that_change_nothing_keep_the_largest_logit() {
        let keeps = |last_n, weights| Penalties::of_latest(last_n, weights, &[]).preserves_argmax();
        assert!(keeps(0, [2.0, 0.5, 0.25]), "a window without tokens");
        assert!(keeps(8, [1.0, 0.0, 0.0]));
        for weights in [[2.0, 0.0, 0.0], [1.0, 0.5, 0.0], [1.0, 0.0, 0.25]] {
            assert!(!keeps(8, weights), "{weights:?}");
        }
        assert!(!Penalties::new(2.0, 0.0, 0.0, &[]).preserves_argmax());
    }
}
