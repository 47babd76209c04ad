//! DRY, "don't repeat yourself": the longer the repetition that a token continues, the larger its
//! penalty.
//!
//! ```text
//! tokens so far       a  b  c  d  y  b  c  z  a  b  c
//! repeated before           3           2        (the end)     "a b c" is 3 long, "b c" is 2
//! would continue it            d           z
//! penalty             multiplier * base ^ (3 - allowed_length)   for d
//!                     multiplier * base ^ (2 - allowed_length)   for z
//! ```
//!
//! A repetition is a suffix of all tokens so far, prompt included, that also stands earlier in the
//! window; it does not reach across a breaker, and a token that is a breaker itself is never
//! penalized. Where a token would continue several repetitions, the longest counts.
//!
//! Lengths of common suffixes come from the Z algorithm over the reversed window, so a row costs one
//! pass over the window, whatever it holds.
//!
//! Definition: p-e-w, "DRY: A modern repetition penalty that reliably prevents looping",
//! text-generation-webui #5677, 2024; limits and breakers as in llama.cpp. Two differences from
//! llama.cpp: repetitions count as [`limits::DRY_TOKENS`] tokens at most, and a penalty is at most
//! the largest finite number, so that DRY alone never makes a token impossible.

use crate::{LogitsProcessor, RowContext};
use pelton_base::{Dry, TokenId, TokenSet, limits};
use std::sync::Arc;

/// Penalizes the tokens that would continue a repetition.
#[derive(Clone, Debug)]
pub struct DryPenalty {
    multiplier: f32,
    base: f32,
    allowed_length: usize,
    last_n: usize,
    breakers: Arc<Breakers>,
    /// Prompt and output.
    tokens: Vec<TokenId>,
    /// For each place before the last, counted from the end: how many tokens that end there are
    /// those that end the text.
    lengths: Vec<u32>,
    /// Tokens that would continue a repetition, and its length.
    found: Vec<(TokenId, u32)>,
}

/// The tokens that end a repetition.
#[derive(Debug)]
struct Breakers {
    /// Tokens that are breakers of their own.
    single: TokenSet,
    /// Longer ones.
    sequences: Vec<Vec<TokenId>>,
}

impl DryPenalty {
    /// Starts from the tokens of the prompt.
    pub fn new(dry: &Dry, prompt: &[TokenId]) -> Self {
        let single = || dry.breakers.iter().filter(|tokens| tokens.len() == 1);
        let mut set = TokenSet::default();
        // Ids are below 2²⁴ in every vocabulary; a larger one would only cost memory here.
        let end = single().map(|tokens| tokens[0].0 + 1).filter(|&end| end < 1 << 24).max();
        set.clear(end.unwrap_or(0) as usize);
        single().for_each(|tokens| set.insert(tokens[0]));
        let sequences = dry.breakers.iter().filter(|tokens| tokens.len() > 1).cloned().collect();
        Self {
            multiplier: dry.multiplier,
            base: dry.base,
            allowed_length: dry.allowed_length,
            last_n: dry.last_n.unwrap_or(usize::MAX),
            breakers: Arc::new(Breakers { single: set, sequences }),
            tokens: prompt.to_vec(),
            lengths: Vec::new(),
            found: Vec::new(),
        }
    }

    /// The tokens in which repetitions are looked for.
    fn window(&self) -> &[TokenId] {
        &self.tokens[self.tokens.len().saturating_sub(self.last_n)..]
    }

    /// Tokens after the last breaker, which is as long as a repetition can be.
    fn reach(&self) -> usize {
        let window = self.window();
        let n_most = window.len().min(limits::DRY_TOKENS);
        let is_end_of_breaker = |end: &usize| {
            let Breakers { single, sequences } = &*self.breakers;
            let text = &window[..window.len() - end];
            text.last().is_some_and(|&last| single.contains(last))
                || sequences.iter().any(|sequence| text.ends_with(sequence))
        };
        (0..n_most).find(is_end_of_breaker).unwrap_or(n_most)
    }

    /// Fills `found` with the tokens that would continue a repetition, each once, and the length of
    /// its longest.
    fn find(&mut self) {
        self.found.clear();
        let n_window = self.window().len();
        let reach = self.reach();
        if n_window <= self.allowed_length || reach < self.allowed_length {
            return;
        }
        let window = &self.tokens[self.tokens.len() - n_window..];
        common_suffixes(window, &mut self.lengths);
        for (back, &length) in self.lengths.iter().enumerate().skip(1) {
            let length = (length as usize).min(reach);
            let next = window[n_window - back];
            if length >= self.allowed_length && !self.breakers.single.contains(next) {
                self.found.push((next, length as u32));
            }
        }
        // The longest of each token comes first.
        self.found.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        self.found.dedup_by_key(|(token, _)| *token);
    }

    /// The penalty of a repetition of this length.
    fn penalty(&self, length: usize) -> f32 {
        let most = f64::from(f32::MAX);
        let mut penalty = f64::from(self.multiplier);
        for _ in self.allowed_length..length {
            penalty *= f64::from(self.base);
            if penalty >= most {
                break;
            }
        }
        penalty.min(most) as f32
    }
}

/// Fills `lengths[back]` with the number of tokens that end `back` tokens before the end of `text`
/// and are those that end it; `lengths[0]` is that of the whole text.
///
/// The Z algorithm: `[left, right)`, counted from the end, is the match that reaches furthest back.
fn common_suffixes(text: &[TokenId], lengths: &mut Vec<u32>) {
    let n = text.len();
    let at = |back: usize| text[n - 1 - back];
    lengths.clear();
    lengths.resize(n, n as u32);
    let (mut left, mut right) = (0, 0);
    for back in 1..n {
        let mut length = 0;
        if back < right {
            length = (lengths[back - left] as usize).min(right - back);
        }
        while back + length < n && at(length) == at(back + length) {
            length += 1;
        }
        if back + length > right {
            (left, right) = (back, back + length);
        }
        lengths[back] = length as u32;
    }
}

impl LogitsProcessor for DryPenalty {
    fn apply(&mut self, _row: &RowContext, logits: &mut [f32]) {
        self.find();
        for &(token, length) in &self.found {
            if let Some(logit) = logits.get_mut(token.0 as usize) {
                *logit -= self.penalty(length as usize);
            }
        }
    }

    fn accepted(&mut self, token: TokenId) {
        self.tokens.push(token);
    }

    fn reserve(&mut self, n_tokens: usize) {
        self.tokens.reserve_exact(n_tokens);
        let n_window = (self.tokens.len() + n_tokens).min(self.last_n);
        self.lengths.reserve_exact(n_window);
        self.found.reserve_exact(n_window);
    }

    fn preserves_argmax(&self) -> bool {
        self.multiplier == 0.0 || self.last_n == 0
    }

    fn fork(&self) -> Box<dyn LogitsProcessor> {
        // Scratch is not worth a copy.
        let (lengths, found) = (Vec::new(), Vec::new());
        let Self { multiplier, base, allowed_length, last_n, .. } = *self;
        let (breakers, tokens) = (Arc::clone(&self.breakers), self.tokens.clone());
        Box::new(Self {
            multiplier,
            base,
            allowed_length,
            last_n,
            breakers,
            tokens,
            lengths,
            found,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ids(tokens: &[u32]) -> Vec<TokenId> {
        tokens.iter().copied().map(TokenId).collect()
    }

    fn dry(breakers: &[&[u32]]) -> Dry {
        let breakers = breakers.iter().map(|tokens| ids(tokens)).collect();
        Dry { multiplier: 1.0, base: 2.0, breakers, ..Dry::default() }
    }

    /// The penalties of tokens 0 to 9.
    fn penalties(dry: &Dry, text: &[u32]) -> [f32; 10] {
        let (prompt, output) = text.split_at(text.len() / 2);
        let mut processor = DryPenalty::new(dry, &ids(prompt));
        output.iter().for_each(|&token| processor.accepted(TokenId(token)));
        let mut logits = [0.0; 10];
        processor.apply(&RowContext { n_generated: output.len() }, &mut logits);
        logits.map(|logit| -logit)
    }

    #[test]
    fn the_drawing_is_what_happens() {
        // a = 1, b = 2, c = 3, d = 4, y = 5, z = 6.
        let text = [1, 2, 3, 4, 5, 2, 3, 6, 1, 2, 3];
        let got = penalties(&dry(&[]), &text);
        assert_eq!(got, [0.0, 0.0, 0.0, 0.0, 2.0, 0.0, 1.0, 0.0, 0.0, 0.0]);
        // Without its first tokens, "a b c" is not repeated any more.
        let late = Dry { last_n: Some(7), ..dry(&[]) };
        assert_eq!(penalties(&late, &text), [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn a_repetition_does_not_reach_across_a_breaker_and_a_breaker_is_free() {
        let text = [1, 2, 3, 4, 1, 2, 3];
        assert_eq!(penalties(&dry(&[]), &text)[4], 2.0);
        assert_eq!(penalties(&dry(&[&[1]]), &text)[4], 1.0, "`2 3` is left");
        assert_eq!(penalties(&dry(&[&[1, 2]]), &text)[4], 0.0, "`3` is left");
        assert_eq!(penalties(&dry(&[&[3]]), &text)[4], 0.0, "nothing is left");
        assert_eq!(penalties(&dry(&[&[4]]), &text)[4], 0.0, "it may come");
    }

    #[test]
    fn a_long_repetition_is_penalized_finitely() {
        let text = [7; 5000];
        let steep = Dry { base: 100.0, ..dry(&[]) };
        assert_eq!(penalties(&steep, &text)[7], f32::MAX);
        let flat = Dry { base: 1.0, multiplier: 0.5, ..dry(&[]) };
        assert_eq!(penalties(&flat, &text)[7], 0.5);
    }

    /// From the definition: every pair of places, compared token by token.
    fn naive(dry: &Dry, text: &[u32], token: u32) -> f64 {
        let text = &text[text.len().saturating_sub(dry.last_n.unwrap_or(usize::MAX))..];
        let breakers: Vec<Vec<u32>> =
            dry.breakers.iter().map(|tokens| tokens.iter().map(|id| id.0).collect()).collect();
        let ends = |end: usize| breakers.iter().any(|breaker| text[..end].ends_with(breaker));
        let reach = (0..=text.len()).find(|n| ends(text.len() - n)).unwrap_or(text.len());
        let is_long_enough = text.len() > dry.allowed_length && reach >= dry.allowed_length;
        if !is_long_enough || breakers.contains(&vec![token]) {
            return 0.0;
        }
        let mut longest = None;
        for at in (1..text.len()).filter(|&at| text[at] == token) {
            let same = (0..at).take_while(|&n| text[at - 1 - n] == text[text.len() - 1 - n]);
            longest = longest.max(Some(same.count().min(reach)));
        }
        let longest = longest.filter(|&n| n >= dry.allowed_length);
        let exponent = |n: usize| f64::from(n as u32) - f64::from(dry.allowed_length as u32);
        longest.map_or(0.0, |n| f64::from(dry.multiplier) * f64::from(dry.base).powf(exponent(n)))
    }

    proptest! {
        #[test]
        fn penalties_are_those_of_the_definition(
            text in prop::collection::vec(0..3_u32, 0..40),
            breakers in prop::collection::vec(prop::collection::vec(0..4_u32, 1..3), 0..3),
            allowed_length in 0..4_usize,
            last_n in prop_oneof![Just(None), (0..40_usize).prop_map(Some)],
        ) {
            let breakers = breakers.iter().map(|tokens| ids(tokens)).collect();
            let dry = Dry { multiplier: 0.5, base: 1.25, allowed_length, last_n, breakers };
            let got = penalties(&dry, &text);
            for (token, &got) in (0..).zip(&got) {
                let expected = naive(&dry, &text, token);
                let is_close = (f64::from(got) - expected).abs() <= 1e-6 * expected;
                prop_assert!(is_close, "token {}: {} of {}", token, got, expected);
            }
        }
    }
}
